// Products in 8 bits for AMX-INT8. Compiled with the flags of that ISA (see CMakeLists.txt).
#include "kernels/cpu/int8/product_amx.h"

#include "kernels/cpu/amx_tiles.h"

namespace runahead {
namespace {

struct Int8TilesTag {};

}  // namespace

const Int8Kernels& AmxInt8Kernels() {
  return Int8Amx<HardwareTiles<Int8TilesTag>>::kKernels;
}

}  // namespace runahead
