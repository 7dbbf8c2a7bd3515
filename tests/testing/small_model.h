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

}  // namespace runahead
