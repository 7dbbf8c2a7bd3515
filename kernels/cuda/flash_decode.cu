// The first half of decode: each piece of KV by FlashInfer's prefill kernel, of which a block works on one query at
// least. On tensor cores, whose 16 rows the query heads that share a KV head fill as far as they go: reading KV is what
// takes the time, and any number of heads may share.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <flashinfer/attention/prefill.cuh>

#include "kernels/cuda/flash_kernels.h"
#include "kernels/cuda/flash_launch.cuh"

namespace runahead {
namespace {

constexpr uint32_t kTileQ = 16;

// Of 64 rows of KV each: a block loads at most 32 KiB of K at once and as much of V, so that two blocks have room in
// the shared memory of an A100 and three in Hopper's, and one in that of any other GPU.
template <int kHeadDim>
inline constexpr uint32_t kKvSteps = kHeadDim == 256 ? 1 : 2;

// The arrays by which FlashInfer's kernel finds its work, for the one piece of a block. Pages are counted in units of
// kFlashAlignment bytes from address 0, which takes 64 bits.
struct PieceArrays {
  int64_t zero[1];  // of one request the first tile of KV
  int64_t q_tile[1];
  int64_t query_row[1];
  int64_t piece[1];
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
  const FlashDecodePiece* pieces;
  uint32_t kv_heads;
  uint32_t q_tiles;  // 16 rows each, of the heads that share a KV head
};

template <typename Traits, typename T>
__global__ __launch_bounds__(Traits::NUM_THREADS) void DecodePieces(const __grid_constant__ DecodeLaunch<T> launch) {
  extern __shared__ __align__(128) uint8_t decode_storage[];
  __shared__ PieceArrays arrays;

  // KV heads of a piece, whose rows lie side by side, run side by side.
  const uint32_t kv_head = blockIdx.x % launch.kv_heads;
  const uint32_t q_tile = blockIdx.x / launch.kv_heads % launch.q_tiles;
  const uint32_t index = blockIdx.x / launch.kv_heads / launch.q_tiles;
  const FlashDecodePiece piece = launch.pieces[index];
  if (piece.tokens == 0) return;

  DecodeParams<T> params = launch.params;
  const uint32_t page_tokens = params.paged_kv.page_size;
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    const uint32_t pages = (piece.tokens + page_tokens - 1) / page_tokens;
    arrays.zero[0] = 0;
    arrays.q_tile[0] = q_tile;
    arrays.query_row[0] = piece.query_row;
    arrays.piece[0] = index;
    arrays.page_ends[0] = 0;
    arrays.page_ends[1] = pages;
    arrays.last_page_tokens[0] = piece.tokens - (pages - 1) * page_tokens;
    arrays.tokens[0] = piece.tokens;
  }
  __syncthreads();

  params.paged_kv.indices += piece.first_page;
  params.paged_kv.indptr = arrays.page_ends;
  params.paged_kv.last_page_len = arrays.last_page_tokens;
  params.request_indices = params.kv_tile_indices = arrays.zero;
  params.qo_tile_indices = arrays.q_tile;
  params.q_indptr = arrays.query_row;
  params.o_indptr = arrays.piece;
  params.kv_chunk_size_ptr = arrays.tokens;
  auto& storage = reinterpret_cast<typename Traits::SharedStorage&>(decode_storage);
  flashinfer::BatchPrefillWithPagedKVCacheDevice<Traits>(params, storage, threadIdx, /*bx=*/0, kv_head,
                                                         launch.kv_heads);
}

template <typename T>
DecodeLaunch<T> DecodeLaunchOf(const FlashDecodeArgs& args) {
  DecodeLaunch<T> launch = {};
  launch.pieces = args.pieces;
  launch.kv_heads = static_cast<uint32_t>(args.kv_heads);
  const auto group = static_cast<uint32_t>(args.heads / args.kv_heads);
  launch.q_tiles = (group + kTileQ - 1) / kTileQ;

  DecodeParams<T>& params = launch.params;
  const FlashPartials partials = PartialsIn(args);
  params.q = static_cast<T*>(args.q.data);
  params.o = partials.means;
  params.lse = partials.logs;
  params.group_size = flashinfer::uint_fastdiv(group);
  params.q_stride_n = static_cast<uint32_t>(args.q.stride);
  params.q_stride_h = static_cast<uint32_t>(args.head_dim);
  params.window_left = -1;
  params.sm_scale = args.scale;

  flashinfer::paged_kv_t<T, int64_t>& kv = params.paged_kv;
  const uint32_t kv_heads_size = launch.kv_heads * static_cast<uint32_t>(args.head_dim);
  kv.page_size = flashinfer::uint_fastdiv(static_cast<uint32_t>(args.page_tokens));
  kv.num_heads = launch.kv_heads;
  kv.head_dim = static_cast<uint32_t>(args.head_dim);
  kv.batch_size = 1;
  kv.stride_page = kFlashAlignment / sizeof(T);
  kv.stride_n = 2 * kv_heads_size;
  kv.stride_h = static_cast<uint32_t>(args.head_dim);
  kv.k_data = nullptr;
  kv.v_data = reinterpret_cast<T*>(kv_heads_size * sizeof(T));
  kv.indices = const_cast<int64_t*>(args.pages);
  return launch;
}

}  // namespace

cudaError_t LaunchDecodePieces(const FlashDecodeArgs& args, cudaStream_t stream) {
  return ForFlashType(args.q.dtype, args.head_dim, [&]<typename T, int kHeadDim>() {
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
