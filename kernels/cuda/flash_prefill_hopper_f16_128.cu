#include "kernels/cuda/flash_prefill_hopper.cuh"

namespace runahead {

cudaError_t LaunchPrefillHopperF16Dim128(const FlashPrefillArgs& args, cudaStream_t stream) {
  return LaunchPrefillHopper<cutlass::half_t, 128, /*kDense=*/false>(args, stream);
}

}  // namespace runahead
