// Attention in f32 arithmetic for AVX-512. Compiled with the flags of that ISA (see CMakeLists.txt).
#include "kernels/cpu/attention_decode_split.h"
#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/attention_prefill_f32.h"
#include "kernels/cpu/attention_vec512.h"

namespace runahead {

const PrefillKernels& Avx512PrefillKernels() {
  return PrefillF32<Vec512>::kKernels;
}

const DecodeKernels& Avx512DecodeKernels() {
  return kDecodeKernels<Vec512>;
}

}  // namespace runahead
