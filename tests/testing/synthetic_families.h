// What each family's checkpoints are made of.
#pragma once

#include "tests/testing/synthetic_gguf.h"

namespace runahead {

inline int64_t HeadDim(const SyntheticModel& model) {
  return model.head_dim != 0 ? model.head_dim : model.hidden / (model.heads < 1 ? 1 : model.heads);
}

// Of a model that was checked (AddSyntheticModel).
void AddFamilyKeys(const SyntheticModel& model, GgufBuilder& file);
void AddFamilyTensors(const SyntheticModel& model, TensorSink& tensors);

}  // namespace runahead
