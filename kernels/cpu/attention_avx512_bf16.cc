// Attention with AVX512_BF16. Compiled with flags of that ISA (see CMakeLists.txt).
#include "kernels/cpu/attention_prefill_bf16.h"

namespace runahead {

const PrefillKernels& Avx512Bf16PrefillKernels() {
  return PrefillBf16::kKernels;
}

}  // namespace runahead
