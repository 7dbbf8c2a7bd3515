// Products in 8 bits for AVX512-VNNI. Compiled with the flags of that ISA (see CMakeLists.txt).
#include "kernels/cpu/int8/group_template.h"
#include "kernels/cpu/int8/ints512.h"
#include "kernels/cpu/int8/product.h"
#include "kernels/cpu/int8/quantize_row.h"
#include "kernels/cpu/int8/register_sums.h"
#include "kernels/cpu/int8/vnni_sums.h"

namespace runahead {
namespace {

struct Avx512Vnni : Ints512<Avx512Vnni>, VnniSums<Avx512Vnni> {
  template <WeightType type, int kGroups>
  using Sums = Int8RegisterSums<Avx512Vnni, type, kGroups>;

  static __m512i Dot(__m512i sum, __m512i u, __m512i q) { return _mm512_dpbusd_epi32(sum, u, q); }
};

}  // namespace

const Int8Kernels& Avx512VnniInt8Kernels() {
  static constexpr Int8Kernels kKernels = {"avx512_vnni", Int8QuantizeRow, Int8Strip<Avx512Vnni>};
  return kKernels;
}

}  // namespace runahead
