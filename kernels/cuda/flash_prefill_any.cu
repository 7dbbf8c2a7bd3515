// Prefill without a window.
#include "kernels/cuda/flash_prefill_any.cuh"

namespace runahead {
namespace {

// The dense rectangle: the kernel skips no tile of KV, since it knows of no causality; the mask does.
struct MaskAfterwards : flashinfer::AttentionVariantBase {
  uint32_t qo_len, kv_len, window_left, first_position;
  float sm_scale_log2;

  template <typename Params>
  __device__ MaskAfterwards(const Params& params, uint32_t batch_idx, uint8_t*)
      : qo_len(params.get_qo_len(batch_idx)),
        kv_len(params.get_kv_len(batch_idx)),
        window_left(kv_len),
        first_position(params.first_position),
        sm_scale_log2(params.sm_scale * flashinfer::math::log2e) {}

  template <typename Params>
  __device__ bool LogitsMask(const Params&, uint32_t, uint32_t qo_idx, uint32_t kv_idx, uint32_t, uint32_t) {
    return kv_idx <= first_position + qo_idx;
  }
};

using MaskOnTheWay = flashinfer::DefaultAttention</*use_custom_mask=*/false, /*use_sliding_window=*/false,
                                                  /*use_logits_soft_cap=*/false, /*use_alibi=*/false>;

template <typename T, int kHeadDim>
cudaError_t LaunchKind(const FlashPrefillArgs& args, cudaStream_t stream) {
  using flashinfer::MaskMode;
  return args.dense_length > 0 ? LaunchPrefill<T, kHeadDim, MaskMode::kCustom, MaskAfterwards>(args, stream)
                               : LaunchPrefill<T, kHeadDim, MaskMode::kCausal, MaskOnTheWay>(args, stream);
}

}  // namespace

cudaError_t LaunchPrefillAnyGpu(const FlashPrefillArgs& args, cudaStream_t stream) {
  return ForFlashType(args.q.dtype, args.head_dim,
                      [&]<typename T, int kHeadDim>() { return LaunchKind<T, kHeadDim>(args, stream); });
}

}  // namespace runahead
