// The products of AMX-INT8 on a machine with AVX512-VNNI, its tiles in memory.
// Compiled with the flags of AVX-512 (see tests/kernels/CMakeLists.txt).
#include "kernels/cpu/int8/product_amx.h"
#include "tests/kernels/cpu/emulated_tiles.h"

namespace runahead {
namespace {

struct Int8TilesTag {};

}  // namespace

const Int8Kernels& EmulatedAmxInt8Kernels() {
  return Int8Amx<EmulatedTiles<Int8TilesTag>>::kKernels;
}

}  // namespace runahead
