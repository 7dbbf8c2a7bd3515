// Compiled with AVX512_BF16 flags (see tests/kernels/CMakeLists.txt).
#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_vec512_bf16.h"
#include "tests/kernels/cpu/attention_stand_ins.h"
#include "tests/kernels/cpu/emulated_tiles.h"

namespace runahead {
namespace {

struct RealVec : Vec512Bf16 {};

}  // namespace

const PrefillKernels& EmulatedAmxPrefillKernels() {
  return PrefillAmx<RealVec, EmulatedTiles<RealVec>>::kKernels;
}

}  // namespace runahead
