#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/int8/product.h"

namespace runahead {

const Int8Kernels& FastestInt8Kernels() {
  const CpuVnni vnni = DetectCpuVnni();
  if (vnni.amx) return AmxInt8Kernels();
  return vnni.avx512 ? Avx512VnniInt8Kernels() : vnni.avx ? AvxVnniInt8Kernels() : Avx2Int8Kernels();
}

}  // namespace runahead
