// Pieces of KV for one query: each by FlashInfer's prefill kernel, of which a block works on one query at
// least. On tensor cores, whose 16 rows the query heads that share a KV head fill as far as they go: reading KV is what
// takes the time, and any number of heads may share.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <flashinfer/attention/prefill.cuh>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/flash_kernels.h"
#include "kernels/cuda/flash_launch.cuh"

namespace runahead {
namespace {

constexpr uint32_t kTileQ = 16;

// Of 64 rows of KV each: a block loads at most 32 KiB of K at once and as much of V, so that two blocks have room in
// the shared memory of an A100 and three in Hopper's, and one in that of any other GPU.
template <int kHeadDim>
inline constexpr uint32_t kKvSteps = kHeadDim == 256 ? 1 : 2;

// The arrays by which FlashInfer's kernel finds its work, for the one piece of a block.
struct PieceArrays {
  int64_t zero[1];  // of one request the first tile of KV, and the first row of out
  int64_t q_tile[1];
  int64_t query_row[1];
  int64_t page_ends[2];
  int64_t last_page_tokens[1];
  int64_t tokens[1];
};

// What FlashInfer's kernel reads.
template <typename T>
struct DecodeParams {
  using DTypeQ = T;
  using DTypeKV = T;
  using DTypeO = float;
  using IdType = int64_t;

  T* q;
  flashinfer::paged_kv_t<T, int64_t> paged_kv;
  float* o;
  float* lse;
  flashinfer::uint_fastdiv group_size;
  uint32_t q_stride_n, q_stride_h;
  int32_t window_left;
  float sm_scale;
  int64_t *request_indices, *qo_tile_indices, *kv_tile_indices, *q_indptr, *o_indptr, *kv_chunk_size_ptr;
  bool* block_valid_mask;
  bool partition_kv;

  __host__ __device__ uint32_t get_qo_len(uint32_t) const { return 1; }
  __host__ __device__ uint32_t get_kv_len(uint32_t request) const { return paged_kv.get_length(request); }
};

template <typename T, int kHeadDim>
using DecodeTraits =
    flashinfer::KernelTraits<flashinfer::MaskMode::kNone, kTileQ, flashinfer::get_num_mma_q(kTileQ), kKvSteps<kHeadDim>,
                             kHeadDim / 16, kHeadDim / 16, flashinfer::get_num_warps_q(kTileQ),
                             flashinfer::get_num_warps_kv(kTileQ), flashinfer::PosEncodingMode::kNone, T, T, float,
                             float, int64_t,
                             flashinfer::DefaultAttention</*use_custom_mask=*/false, /*use_sliding_window=*/false,
                                                          /*use_logits_soft_cap=*/false, /*use_alibi=*/false>>;

// What is the same for all blocks.
template <typename T>
struct DecodeLaunch {
  DecodeParams<T> params;  // without the arrays
  const AttentionPiece* pieces;
  int64_t window;
  Rows<float> partials;
  float* workspace;
  uint32_t heads, kv_heads;
  uint32_t q_tiles;  // 16 rows each, of the heads that share a KV head
};

// The heads [first, end) whose query a block has.
struct BlockHeads {
  uint32_t first, end;

  __device__ BlockHeads(uint32_t group, uint32_t kv_head, uint32_t q_tile)
      : first(kv_head * group + q_tile * kTileQ), end(min(kv_head * group + group, first + kTileQ)) {}
};

__device__ uint32_t ThreadOfBlock() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

// Of a piece that begins `hidden` positions before what the query sees. The kernel itself begins there: it counts what
// lies before the query's own position, here the last one.
template <typename T>
__device__ DecodeParams<T> ParamsOf(const DecodeLaunch<T>& launch, const AttentionPiece& piece, int64_t hidden,
                                    uint32_t q_tile, PieceArrays& arrays) {
  DecodeParams<T> params = launch.params;
  params.window_left = hidden == 0 ? -1 : static_cast<int32_t>(piece.tokens - hidden - 1);
  const uint32_t page_tokens = params.paged_kv.page_size;
  if (ThreadOfBlock() == 0) {
    const uint32_t pages = (piece.tokens + page_tokens - 1) / page_tokens;
    arrays.zero[0] = 0;
    arrays.q_tile[0] = q_tile;
    arrays.query_row[0] = piece.query_row;
    arrays.page_ends[0] = 0;
    arrays.page_ends[1] = pages;
    arrays.last_page_tokens[0] = piece.tokens - (pages - 1) * page_tokens;
    arrays.tokens[0] = piece.tokens;
  }
  __syncthreads();
  params.paged_kv.indices += piece.first_page;
  params.paged_kv.indptr = arrays.page_ends;
  params.paged_kv.last_page_len = arrays.last_page_tokens;
  params.request_indices = params.kv_tile_indices = params.o_indptr = arrays.zero;
  params.qo_tile_indices = arrays.q_tile;
  params.q_indptr = arrays.query_row;
  params.kv_chunk_size_ptr = arrays.tokens;
  return params;
}

template <typename Traits, typename T>
__global__ __launch_bounds__(Traits::NUM_THREADS) void DecodePieces(const __grid_constant__ DecodeLaunch<T> launch) {
  extern __shared__ __align__(128) uint8_t decode_storage[];
  __shared__ PieceArrays arrays;

  // KV heads of a piece, whose rows lie side by side, run side by side.
  const uint32_t kv_head = blockIdx.x % launch.kv_heads;
  const uint32_t q_tile = blockIdx.x / launch.kv_heads % launch.q_tiles;
  const uint32_t index = blockIdx.x / launch.kv_heads / launch.q_tiles;
  const AttentionPiece piece = launch.pieces[index];
  if (piece.tokens == 0) return;
  constexpr uint32_t kHeadDim = Traits::HEAD_DIM_VO;
  const BlockHeads heads(launch.heads / launch.kv_heads, kv_head, q_tile);
  float* const row = launch.partials.at(index);
  float* const logs = row + launch.heads * kHeadDim;
  const int64_t hidden = launch.window > 0 && launch.window < piece.left ? piece.left - launch.window : 0;
  if (hidden >= piece.tokens) {
    const uint32_t head = heads.first + ThreadOfBlock();
    if (head < heads.end) logs[head] = -flashinfer::math::inf;
    return;
  }

  DecodeParams<T> params = ParamsOf(launch, piece, hidden, q_tile, arrays);
  const bool direct = reinterpret_cast<uintptr_t>(row) % sizeof(float2) == 0;
  params.o = direct ? row : launch.workspace + static_cast<int64_t>(index) * launch.heads * kHeadDim;
  params.lse = logs;
  auto& storage = reinterpret_cast<typename Traits::SharedStorage&>(decode_storage);
  flashinfer::BatchPrefillWithPagedKVCacheDevice<Traits>(params, storage, threadIdx, /*bx=*/0, kv_head,
                                                         launch.kv_heads);
  if (direct) return;
  __syncthreads();
  for (uint32_t i = heads.first * kHeadDim + ThreadOfBlock(); i < heads.end * kHeadDim; i += Traits::NUM_THREADS) {
    row[i] = params.o[i];
  }
}

template <typename T>
DecodeLaunch<T> DecodeLaunchOf(const FlashPiecesArgs& of) {
  const AttentionArgs& args = of.attention;
  const auto heads = static_cast<uint32_t>(args.heads), kv_heads = static_cast<uint32_t>(args.kv_heads);
  const auto head_dim = static_cast<uint32_t>(args.head_dim);
  DecodeLaunch<T> launch = {.params = {},
                            .pieces = of.pieces,
                            .window = args.window,
                            .partials = Rows<float>(of.partials),
                            .workspace = of.workspace,
                            .heads = heads,
                            .kv_heads = kv_heads,
                            .q_tiles = (heads / kv_heads + kTileQ - 1) / kTileQ};

  DecodeParams<T>& params = launch.params;
  params.q = static_cast<T*>(args.q.data);
  params.group_size = flashinfer::uint_fastdiv(heads / kv_heads);
  params.q_stride_n = static_cast<uint32_t>(args.q.stride);
  params.q_stride_h = head_dim;
  params.sm_scale = args.scale;

  // Numbers of pages are 64 bits: so many bytes may lie behind the base.
  flashinfer::paged_kv_t<T, int64_t>& kv = params.paged_kv;
  kv.page_size = flashinfer::uint_fastdiv(static_cast<uint32_t>(args.page_tokens));
  kv.num_heads = kv_heads;
  kv.head_dim = head_dim;
  kv.batch_size = 1;
  kv.stride_n = 2 * kv_heads * head_dim;
  kv.stride_page = static_cast<uint32_t>(args.page_tokens) * kv.stride_n;
  kv.stride_h = head_dim;
  kv.k_data = reinterpret_cast<T*>(const_cast<std::byte*>(args.layer));
  kv.v_data = kv.k_data + kv_heads * head_dim;
  kv.indices = const_cast<int64_t*>(args.pages);
  return launch;
}

}  // namespace

cudaError_t LaunchDecodePieces(const FlashPiecesArgs& args, cudaStream_t stream) {
  return ForFlashType(args.attention.q.dtype, args.attention.head_dim, [&]<typename T, int kHeadDim>() {
    using Traits = DecodeTraits<T, kHeadDim>;
    static_assert(!Traits::IsInvalid());
    const DecodeLaunch<T> launch = DecodeLaunchOf<T>(args);
    const dim3 grid(static_cast<unsigned>(args.piece_count * launch.q_tiles * launch.kv_heads));
    const dim3 block(32, Traits::NUM_WARPS_Q, Traits::NUM_WARPS_KV);
    return LaunchWithSharedMemory<&DecodePieces<Traits, T>>(grid, block, sizeof(typename Traits::SharedStorage), stream,
                                                            launch);
  });
}

}  // namespace runahead
