// Products in 8 bits for AVX-VNNI. Compiled with the flags of that ISA (see CMakeLists.txt).
#include "kernels/cpu/int8/group_template.h"
#include "kernels/cpu/int8/ints256.h"
#include "kernels/cpu/int8/product.h"
#include "kernels/cpu/int8/quantize_row.h"
#include "kernels/cpu/int8/vnni_sums.h"

namespace runahead {
namespace {

struct AvxVnni : Ints256<AvxVnni>, VnniSums<AvxVnni> {
  static constexpr bool kTakesBytes = true;

  static __m256i Dot(__m256i sum, __m256i u, __m256i q) { return _mm256_dpbusd_avx_epi32(sum, u, q); }
};

}  // namespace

const Int8Kernels& AvxVnniInt8Kernels() {
  static constexpr Int8Kernels kKernels = {"avx_vnni", Int8QuantizeRow, Int8Strip<AvxVnni>};
  return kKernels;
}

}  // namespace runahead
