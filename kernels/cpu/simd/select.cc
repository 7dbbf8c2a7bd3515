#include "kernels/cpu/simd/kernels.h"

namespace runahead {

const CpuKernels& KernelsFor(bool avx512) {
  return avx512 ? avx512::kKernels : avx2::kKernels;
}

}  // namespace runahead
