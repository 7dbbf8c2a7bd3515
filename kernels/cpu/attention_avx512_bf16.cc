// Attention with AVX512_BF16. Compiled with flags of that ISA (see CMakeLists.txt).
#include "kernels/cpu/attention_prefill_bf16.h"
#include "kernels/cpu/attention_vec512_bf16.h"

namespace runahead {

const PrefillKernels& Avx512Bf16PrefillKernels() {
  return PrefillBf16<Vec512Bf16>::kKernels;
}

}  // namespace runahead
