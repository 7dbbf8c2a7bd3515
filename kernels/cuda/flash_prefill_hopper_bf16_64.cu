#include "kernels/cuda/flash_prefill_hopper.cuh"

namespace runahead {

cudaError_t LaunchPrefillHopperBf16Dim64(const FlashPrefillArgs& args, cudaStream_t stream) {
  return LaunchPrefillHopper<cutlass::bfloat16_t, 64, /*kDense=*/false>(args, stream);
}

}  // namespace runahead
