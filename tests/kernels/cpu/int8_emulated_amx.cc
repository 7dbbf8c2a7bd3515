// The products of AMX-INT8 on a machine with AVX512-VNNI, its tiles in memory.
// Compiled with the flags of AVX-512 (see tests/kernels/CMakeLists.txt).
#include <cstdint>

#include "kernels/cpu/int8/product_amx.h"
#include "tests/kernels/cpu/emulated_tiles.h"

namespace runahead {
namespace {

struct Int8TilesTag {};

using Tiles = EmulatedTiles<Int8TilesTag>;

}  // namespace

const Int8Kernels& EmulatedAmxInt8Kernels() {
  return Int8Amx<Tiles>::kKernels;
}

int64_t EmulatedAmxStrips() {
  return __atomic_load_n(&Tiles::configurations, __ATOMIC_RELAXED);
}

}  // namespace runahead
