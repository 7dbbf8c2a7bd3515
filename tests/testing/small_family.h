// A small model of each family.
#pragma once

#include "tests/testing/small_model.h"

namespace runahead {

// `window`: of layers with a sliding window, in families that have such. Deep enough for a layer of each kind.
inline SyntheticModel SmallModelOf(SyntheticFamily family, int64_t window) {
  SyntheticModel model = SmallModel(family == SyntheticFamily::kGemma3 ? 6 : 2);
  model.family = family;
  model.window = window;
  if (family == SyntheticFamily::kOpt) model.kv_heads = model.heads;
  if (family == SyntheticFamily::kOpt || family == SyntheticFamily::kFalcon || family == SyntheticFamily::kQwen3) {
    model.window = 0;
  }
  return model;
}

}  // namespace runahead
