// What turns tokens into rows, and rows into logits.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/model.h"
#include "worker/model/tensor_loader.h"

namespace runahead {

struct TokenTables {
  std::shared_ptr<const Weights> embedding;  // [vocab, hidden]
  std::shared_ptr<const Weights> head;       // [vocab, hidden]; the embedding itself where tied

  // Each once.
  std::vector<std::shared_ptr<const Weights>> All() const {
    if (head == embedding) return {embedding};
    return {embedding, head};
  }
};

// Tensors token_embd.weight and, where the file has a head of its own, output.weight.
absl::StatusOr<TokenTables> LoadTokenTables(const TensorLoader& loader, const ModelConfig& config);

}  // namespace runahead
