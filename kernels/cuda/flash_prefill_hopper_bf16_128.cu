#include "kernels/cuda/flash_prefill_hopper.cuh"

namespace runahead {

cudaError_t LaunchPrefillHopperBf16Dim128(const FlashPrefillArgs& args, cudaStream_t stream) {
  return LaunchPrefillHopper<cutlass::bfloat16_t, 128, /*kDense=*/false>(args, stream);
}

}  // namespace runahead
