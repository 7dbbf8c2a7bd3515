// Attention on AMX tiles. Compiled with flags of that ISA (see CMakeLists.txt).
#include "kernels/cpu/attention_amx.h"

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/attention_vec512_bf16.h"

namespace runahead {

struct Vec512Amx : Vec512Bf16 {};

const PrefillKernels& AmxPrefillKernels() {
  return PrefillAmx<Vec512Amx, HardwareTiles<Vec512Amx>>::kKernels;
}

}  // namespace runahead
