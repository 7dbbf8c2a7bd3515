// Pieces of KV for decode: each by FlashInfer's prefill kernel, of which a block works on one query at
// least. On tensor cores, whose 16 rows the query heads that share a KV head fill as far as they go, those of all
// queries that see the same rows of KV: reading KV is what takes the time, and any number of heads may share.
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
  uint32_t queries;

  __host__ __device__ uint32_t get_qo_len(uint32_t) const { return queries; }
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
  AttentionWork work;
  int64_t window;
  Rows<float> partials;
  float* workspace;
  uint32_t heads, kv_heads;
  uint32_t q_tiles;  // 16 rows each, of the heads that share a KV head and of the queries of a run
};

// What a block works on at a time: a tile of the queries from one of a run on, over the run's rows of KV.
struct QueryTile {
  uint32_t index;  // of the run
  uint32_t query;  // the first one's place in it
  int32_t number;  // of the first query's piece, and `step` from each query's to the next one's
  int32_t step;
  uint32_t queries;
  uint32_t kv_head;
  uint32_t tile;
  int64_t hidden;  // from the first positions of the piece, where there is one query
};

__device__ uint32_t ThreadOfBlock() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

// Of a piece that begins `hidden` positions before what the query sees. The kernel itself begins there: it counts what
// lies before the query's own position, here the last one.
template <typename T>
__device__ DecodeParams<T> ParamsOf(const DecodeLaunch<T>& launch, const AttentionPiece& piece, const QueryTile& of,
                                    PieceArrays& arrays) {
  DecodeParams<T> params = launch.params;
  params.queries = of.queries;
  params.window_left = of.hidden == 0 ? -1 : static_cast<int32_t>(piece.tokens - of.hidden - 1);
  const uint32_t page_tokens = params.paged_kv.page_size;
  if (ThreadOfBlock() == 0) {
    const uint32_t pages = (piece.tokens + page_tokens - 1) / page_tokens;
    arrays.zero[0] = 0;
    arrays.q_tile[0] = of.tile;
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

// The rows of a tile are [first, end) of [queries][group]: a row's result is the same in whichever tile it lies.
template <typename Traits, typename T>
__device__ void AttendQueries(const DecodeLaunch<T>& launch, const QueryTile& of,
                              typename Traits::SharedStorage& storage, PieceArrays& arrays) {
  constexpr uint32_t kHeadDim = Traits::HEAD_DIM_VO;
  const AttentionPiece piece = launch.work.pieces[of.number];
  const uint32_t group = launch.heads / launch.kv_heads, first = of.tile * kTileQ,
                 end = min(of.queries * group, first + kTileQ);
  const auto partial_of = [&](uint32_t row) { return launch.partials.at(of.number + row / group * of.step); };
  const auto head_of = [&](uint32_t row) { return of.kv_head * group + row % group; };
  if (of.hidden >= piece.tokens) {  // its logarithm is that of nothing; FlashInfer's own infinity is a finite number
    const uint32_t row = first + ThreadOfBlock();
    if (row < end) partial_of(row)[launch.heads * kHeadDim + head_of(row)] = -INFINITY;
    return;
  }
  DecodeParams<T> params = ParamsOf(launch, piece, of, arrays);
  float* const partial = launch.partials.at(of.number);
  const bool single = of.queries == 1, direct = single && reinterpret_cast<uintptr_t>(partial) % sizeof(float2) == 0;
  const int64_t heads = launch.work.most_queries * launch.heads;  // that a run has room for
  params.o = direct ? partial : launch.workspace + (of.index * heads + of.query * launch.heads) * kHeadDim;
  params.lse = single ? partial + launch.heads * kHeadDim
                      : launch.workspace + launch.work.count * heads * kHeadDim + of.index * heads;
  flashinfer::BatchPrefillWithPagedKVCacheDevice<Traits>(params, storage, threadIdx, /*bx=*/0, of.kv_head,
                                                         launch.kv_heads);
  if (direct) return;
  __syncthreads();
  for (uint32_t i = first * kHeadDim + ThreadOfBlock(); i < end * kHeadDim; i += Traits::NUM_THREADS) {
    const uint32_t row = i / kHeadDim, head = head_of(row), d = i % kHeadDim;
    partial_of(row)[head * kHeadDim + d] = params.o[(row / group * launch.heads + head) * kHeadDim + d];
  }
  if (single) return;
  if (const uint32_t row = first + ThreadOfBlock(); row < end) {
    partial_of(row)[launch.heads * kHeadDim + head_of(row)] = params.lse[row / group * launch.heads + head_of(row)];
  }
}

template <typename Traits, typename T>
__global__ __launch_bounds__(Traits::NUM_THREADS) void DecodePieces(const __grid_constant__ DecodeLaunch<T> launch) {
  extern __shared__ __align__(128) uint8_t decode_storage[];
  __shared__ PieceArrays arrays;
  auto& storage = reinterpret_cast<typename Traits::SharedStorage&>(decode_storage);

  // KV heads of a piece, whose rows lie side by side, run side by side.
  const uint32_t kv_head = blockIdx.x % launch.kv_heads;
  const uint32_t q_tile = blockIdx.x / launch.kv_heads % launch.q_tiles;
  const uint32_t index = blockIdx.x / launch.kv_heads / launch.q_tiles;
  const PieceRun run = launch.work.runs[index];
  if (run.first < 0) return;
  const AttentionPiece piece = launch.work.pieces[run.first];
  if (piece.tokens == 0) return;
  const auto queries = static_cast<uint32_t>(run.count), group = launch.heads / launch.kv_heads;
  const auto hidden_from = [&](uint32_t query) -> int64_t {
    const int64_t left = piece.left + query;
    return launch.window > 0 && launch.window < left ? left - launch.window : 0;
  };
  if (queries > 1 && hidden_from(queries - 1) == 0) {
    if (q_tile * kTileQ >= queries * group) return;
    return AttendQueries<Traits, T>(launch, {index, 0, run.first, run.step, queries, kv_head, q_tile, 0}, storage,
                                    arrays);
  }
  // One query, or several that see the piece from different positions on: each by itself.
  const uint32_t tiles = (group + kTileQ - 1) / kTileQ;  // of a query
  for (uint32_t i = q_tile; i < queries * tiles; i += launch.q_tiles) {
    const uint32_t query = i / tiles;
    const auto number = run.first + static_cast<int32_t>(query) * run.step;
    AttendQueries<Traits, T>(launch, {index, query, number, 0, 1, kv_head, i % tiles, hidden_from(query)}, storage,
                             arrays);
    __syncthreads();  // before the next one writes to shared memory and the workspace
  }
}

template <typename T>
DecodeLaunch<T> DecodeLaunchOf(const FlashPiecesArgs& of) {
  const AttentionArgs& args = of.attention;
  const auto heads = static_cast<uint32_t>(args.heads), kv_heads = static_cast<uint32_t>(args.kv_heads);
  const auto head_dim = static_cast<uint32_t>(args.head_dim);
  DecodeLaunch<T> launch = {
      .params = {},
      .work = of.work,
      .window = args.window,
      .partials = Rows<float>(of.partials),
      .workspace = of.workspace,
      .heads = heads,
      .kv_heads = kv_heads,
      .q_tiles = static_cast<uint32_t>((of.work.most_queries * (heads / kv_heads) + kTileQ - 1) / kTileQ)};

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
    const dim3 grid(static_cast<unsigned>(args.work.count * launch.q_tiles * launch.kv_heads));
    const dim3 block(32, Traits::NUM_WARPS_Q, Traits::NUM_WARPS_KV);
    return LaunchWithSharedMemory<&DecodePieces<Traits, T>>(grid, block, sizeof(typename Traits::SharedStorage), stream,
                                                            launch);
  });
}

}  // namespace runahead
