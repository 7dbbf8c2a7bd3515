// Attention in f32 arithmetic for AVX2. Compiled with the flags of that ISA (see CMakeLists.txt).
#include "kernels/cpu/attention_decode_split.h"
#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/attention_prefill_f32.h"
#include "kernels/cpu/attention_vec256.h"

namespace runahead {

const PrefillKernels& Avx2PrefillKernels() {
  return PrefillF32<Vec256>::kKernels;
}

const DecodeKernels& Avx2DecodeKernels() {
  return kDecodeKernels<Vec256>;
}

}  // namespace runahead
