// Models whose products are in 8 bits, the default for quantised models on CPUs.
#pragma once

#include <string>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "worker/format/open_model.h"

namespace runahead {

inline LoadedModel LoadInt8(const std::string& path, int threads, DType kv_dtype) {
  LoadedModel loaded;
  loaded.file = *OpenModelFile(path);
  loaded.device = *NewCpuDevice({.threads = threads, .int8 = true, .kv_dtype = kv_dtype});
  loaded.model = *LoadModel(loaded.file, loaded.device, kUsePrefill | kUseDecode, [](int, int) {});
  return loaded;
}

// All its rows may be superblocks.
inline SyntheticModel BlocksModel() {
  SyntheticModel model = SmallModel(2);
  model.heads = 8;
  model.head_dim = 32;
  model.hidden = 256;
  model.ffn = 512;
  model.context_length = 20'000;
  return model;
}

}  // namespace runahead
