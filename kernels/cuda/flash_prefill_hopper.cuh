// Prefill by FlashInfer's kernel for Hopper (wgmma and the tensor memory accelerator): compute capability 9.0 and
// nothing else, so what includes this is compiled for sm_90a alone.
#pragma once

#include <cuda_runtime.h>

// Includes most of CUTLASS, of which these kernels need little: it would add a fifth to the time of compilation.
#define FLASHINFER_CUTLASS_UTILS_CUH_
#include <cutlass/numeric_types.h>

#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>

#include "kernels/cuda/flash_kernels.h"
#include "kernels/cuda/flash_launch.cuh"
#include "kernels/cuda/hopper_epilogue.cuh"

namespace runahead {

// What FlashInfer's launcher reads.
template <typename T>
struct HopperParams {
  using DTypeQ = T;
  using DTypeKV = T;
  using DTypeO = T;
  using IdType = int32_t;
  struct AdditionalParams {
    float sm_scale = 0.0f;
    int first_position = 0;  // of query 0
  };

  T* q_ptr = nullptr;
  T* k_ptr = nullptr;
  T* v_ptr = nullptr;
  T* o_ptr = nullptr;
  float* lse_ptr = nullptr;
  AdditionalParams additional_params;
  int64_t q_stride_n = 0, k_stride_n = 0, v_stride_n = 0, o_stride_n = 0;
  int64_t q_stride_h = 0, k_stride_h = 0, v_stride_h = 0, o_stride_h = 0;
  int qo_len = 0;
  int kv_len = 0;
  int num_qo_heads = 0;
  int num_kv_heads = 0;
  int window_left = -1;
};

// The dense rectangle: the kernel skips no tile of KV, since it knows of no causality; what a query must not see is
// masked where others would transform the scores.
struct HopperMaskAfterwards {
  float sm_scale_log2;
  int first_position;

  template <typename Params, typename BlockCoord>
  __device__ HopperMaskAfterwards(const Params& params, const BlockCoord&)
      : sm_scale_log2(params.additional_params.sm_scale * flashinfer::math::log2e),
        first_position(params.additional_params.first_position) {}

  template <int kRows>
  __device__ auto GetAttentionUpdater() {
    return flashinfer::OnlineSoftmax<kRows, /*WITH_SCALE=*/true>(sm_scale_log2);
  }
  template <typename Params, typename T>
  __device__ T LogitsTransform(const Params&, T logits, uint32_t, uint32_t qo_idx, uint32_t kv_idx, uint32_t,
                               uint32_t) {
    return kv_idx <= first_position + qo_idx ? logits : T(-flashinfer::math::inf);
  }
};

template <typename T>
HopperParams<T> HopperParamsOf(const FlashPrefillArgs& args) {
  HopperParams<T> params;
  const int64_t kv_heads_size = static_cast<int64_t>(args.kv_heads) * args.head_dim;
  auto* kv = reinterpret_cast<T*>(const_cast<std::byte*>(args.kv));
  params.q_ptr = static_cast<T*>(args.q.data);
  params.k_ptr = kv;
  params.v_ptr = kv + kv_heads_size;
  params.o_ptr = static_cast<T*>(args.out.data);
  params.additional_params = {args.scale, static_cast<int>(args.length - args.q.rows)};
  params.q_stride_n = args.q.stride;
  params.o_stride_n = args.out.stride;
  params.k_stride_n = params.v_stride_n = 2 * kv_heads_size;
  params.q_stride_h = params.k_stride_h = params.v_stride_h = params.o_stride_h = args.head_dim;
  params.qo_len = static_cast<int>(args.q.rows);
  params.kv_len = static_cast<int>(args.dense_length > 0 ? args.dense_length : args.length);
  params.num_qo_heads = args.heads;
  params.num_kv_heads = args.kv_heads;
  return params;
}

// `T`: of CUTLASS. Rows of queries and of KV in a tile as FlashInfer has them for causal attention.
template <typename T, int kHeadDim, bool kDense>
cudaError_t LaunchPrefillHopper(const FlashPrefillArgs& args, cudaStream_t stream) {
  constexpr int kTileQ = kHeadDim == 64 ? 192 : 128;
  constexpr int kTileKv = 128;
  constexpr int kStages = 2;
  using Variant = std::conditional_t<kDense, HopperMaskAfterwards, flashinfer::StandardAttention>;
  using Traits = flashinfer::AttentionKernelTraits</*USE_TMA_LOAD_KV=*/true, kHeadDim, kHeadDim, kTileQ, kTileKv,
                                                   kStages, T, T, T, int32_t, Variant>;
  using Mainloop = flashinfer::CollectiveMainloop<typename HopperParams<T>::AdditionalParams, Traits, !kDense>;
  using Epilogue = HopperEpilogue<Traits>;
  using Scheduler = flashinfer::SingleTileScheduler;
  // As FlashInfer's own launcher, which says at every launch how much shared memory it wants.
  const HopperParams<T> params = HopperParamsOf<T>(args);
  const auto layout = [](int rows, int heads, int64_t row_stride, int64_t head_stride) {
    return flashinfer::get_gmem_layout(rows, heads, kHeadDim, row_stride, head_stride);
  };
  typename Mainloop::Params mainloop = Mainloop::to_underlying_arguments(
      {params.q_ptr, layout(params.qo_len, params.num_qo_heads, params.q_stride_n, params.q_stride_h), params.k_ptr,
       layout(params.kv_len, params.num_kv_heads, params.k_stride_n, params.k_stride_h), params.v_ptr,
       layout(params.kv_len, params.num_kv_heads, params.v_stride_n, params.v_stride_h), params.window_left,
       params.additional_params});
  typename Epilogue::Params epilogue = Epilogue::to_underlying_arguments(
      {params.o_ptr, layout(params.qo_len, params.num_qo_heads, params.o_stride_n, params.o_stride_h), params.lse_ptr,
       flashinfer::get_lse_gmem_layout(params.qo_len, params.num_qo_heads)});
  const typename Scheduler::Arguments tiles = {cutlass::ceil_div(params.qo_len, kTileQ), params.num_qo_heads,
                                               params.qo_len, params.kv_len,
                                               cutlass::FastDivmod(params.num_qo_heads / params.num_kv_heads)};
  typename Scheduler::Params scheduler = Scheduler::to_underlying_arguments(tiles);
  constexpr auto kKernel = &flashinfer::PrefillWithKVCacheKernel<Mainloop, Epilogue, Traits,
                                                                 /*LEFT_SLIDING_WINDOW=*/false, !kDense, Scheduler>;
  constexpr size_t kBytes = sizeof(typename Traits::SharedStorage);
  if (const cudaError_t error = AllowSharedMemory<kKernel>(kBytes); error != cudaSuccess) return error;
  void* arguments[] = {&mainloop, &epilogue, &scheduler};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kKernel), Scheduler::get_grid_dim(tiles, 0),
                          dim3(Traits::NUM_THREADS), arguments, kBytes, stream);
}

}  // namespace runahead
