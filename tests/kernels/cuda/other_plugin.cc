// A library that the loader is to take or to refuse, as the definitions say.
#include "kernels/cuda/plugin.h"

extern "C" const runahead::CudaPlugin* PLUGIN_ENTRY() {
  static const runahead::CudaPlugin plugin = {.abi = PLUGIN_ABI, .build = PLUGIN_BUILD};
  return &plugin;
}
