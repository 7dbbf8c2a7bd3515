// Prefill with a window. The kernel masks what the window hides; the launches are cut so that little is left to mask.
#include "kernels/cuda/flash_prefill_any.cuh"

namespace runahead {
namespace {

using MaskWindow = flashinfer::DefaultAttention</*use_custom_mask=*/false, /*use_sliding_window=*/true,
                                                /*use_logits_soft_cap=*/false, /*use_alibi=*/false>;

}  // namespace

cudaError_t LaunchPrefillWindow(const FlashPrefillArgs& args, cudaStream_t stream) {
  return ForFlashType(args.q.dtype, args.head_dim, [&]<typename T, int kHeadDim>() {
    return LaunchPrefill<T, kHeadDim, flashinfer::MaskMode::kCausal, MaskWindow>(args, stream);
  });
}

}  // namespace runahead
