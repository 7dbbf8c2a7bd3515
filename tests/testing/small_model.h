// A model with grouped queries that loads and answers at once.
#pragma once

#include "tests/testing/synthetic_gguf.h"

namespace runahead {

inline SyntheticModel SmallModel(int64_t layers = 4) {
  SyntheticModel model;
  model.name = "small";
  model.layers = layers;
  model.heads = 6;
  model.kv_heads = 2;
  model.head_dim = 16;
  model.hidden = 96;
  return model;
}

// One whose weights are some 40 MB: more than devices with a budget of a few chunks of an arena hold.
inline SyntheticModel WideModel() {
  SyntheticModel model = SmallModel(16);
  model.name = "wide";
  model.heads = model.kv_heads = 4;
  model.head_dim = 64;
  model.hidden = 256;
  model.ffn = 1024;
  model.SetWeightType(WeightType::kF16);
  return model;
}

}  // namespace runahead
