// Prefill by FlashInfer's kernel for all tensor cores since compute capability 8.0: what its kinds have in common.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>

#include "kernels/cuda/flash_kernels.h"
#include "kernels/cuda/flash_launch.cuh"

namespace runahead {

template <typename T>
struct PrefillParams : flashinfer::SinglePrefillParams<T, T, T> {
  uint32_t first_position = 0;  // of query 0
};

// Rows of queries (times the heads that share a KV head) and of KV that a block works on: as many as leave room in
// shared memory for two blocks on an A100, and in registers for all of a thread's sums.
template <int kHeadDim>
inline constexpr uint32_t kTileQ = kHeadDim == 256 ? 64 : 128;
template <int kHeadDim>
inline constexpr uint32_t kKvSteps = kHeadDim == 256 ? 2 : 4;

// `Variant` masks what `kMask` leaves to it.
template <typename T, int kHeadDim, flashinfer::MaskMode kMask, typename Variant>
using PrefillTraits =
    flashinfer::KernelTraits<kMask, kTileQ<kHeadDim>, flashinfer::get_num_mma_q(kTileQ<kHeadDim>), kKvSteps<kHeadDim>,
                             kHeadDim / 16, kHeadDim / 16, flashinfer::get_num_warps_q(kTileQ<kHeadDim>),
                             flashinfer::get_num_warps_kv(kTileQ<kHeadDim>), flashinfer::PosEncodingMode::kNone, T, T,
                             T, float, int32_t, Variant>;

template <typename T>
PrefillParams<T> PrefillParamsOf(const FlashPrefillArgs& args) {
  PrefillParams<T> params;
  const int64_t kv_heads_size = static_cast<int64_t>(args.kv_heads) * args.head_dim;
  auto* kv = reinterpret_cast<T*>(const_cast<std::byte*>(args.kv));
  params.q = static_cast<T*>(args.q.data);
  params.k = kv;
  params.v = kv + kv_heads_size;
  params.o = static_cast<T*>(args.out.data);
  params.group_size = flashinfer::uint_fastdiv(static_cast<uint32_t>(args.heads / args.kv_heads));
  params.qo_len = static_cast<uint32_t>(args.q.rows);
  params.kv_len = static_cast<uint32_t>(args.dense_length > 0 ? args.dense_length : args.length);
  params.num_qo_heads = static_cast<uint32_t>(args.heads);
  params.num_kv_heads = static_cast<uint32_t>(args.kv_heads);
  params.q_stride_n = static_cast<uint32_t>(args.q.stride);
  params.q_stride_h = params.k_stride_h = params.v_stride_h = static_cast<uint32_t>(args.head_dim);
  params.k_stride_n = params.v_stride_n = static_cast<uint32_t>(2 * kv_heads_size);
  params.head_dim = static_cast<uint32_t>(args.head_dim);
  params.window_left = args.window > 0 ? static_cast<int32_t>(std::min(args.window, args.length) - 1) : -1;
  params.sm_scale = args.scale;
  params.first_position = static_cast<uint32_t>(args.length - args.q.rows);
  return params;
}

template <typename T, int kHeadDim, flashinfer::MaskMode kMask, typename Variant>
cudaError_t LaunchPrefill(const FlashPrefillArgs& args, cudaStream_t stream) {
  using Traits = PrefillTraits<T, kHeadDim, kMask, Variant>;
  static_assert(!Traits::IsInvalid());
  const int64_t packed = args.q.rows * (args.heads / args.kv_heads);
  const dim3 grid(static_cast<unsigned>((packed + Traits::CTA_TILE_Q - 1) / Traits::CTA_TILE_Q), 1,
                  static_cast<unsigned>(args.kv_heads));
  const dim3 block(32, Traits::NUM_WARPS_Q, Traits::NUM_WARPS_KV);
  return LaunchWithSharedMemory<&flashinfer::SinglePrefillWithKVCacheKernel<Traits, PrefillParams<T>>>(
      grid, block, sizeof(typename Traits::SharedStorage), stream, PrefillParamsOf<T>(args));
}

}  // namespace runahead
