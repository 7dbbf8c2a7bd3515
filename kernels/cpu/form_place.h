// Where the bytes of a form of a matrix go.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/base/memory.h"
#include "kernels/cpu/shared_weights.h"

namespace runahead {

// Into an arena, or where the form has a name there, into what processes share. Used by one thread.
class FormPlace {
 public:
  FormPlace(Arena& arena) : arena_(arena) {}  // NOLINT(google-explicit-constructor): an arena is such a place
  // What is shared counts in `budget`, too. An empty `name` is in the arena, and so is all where `shared` is null.
  FormPlace(Arena& arena, SharedWeights* shared, std::shared_ptr<MemoryBudget> budget, std::string name)
      : arena_(arena), shared_(shared), budget_(std::move(budget)), name_(std::move(name)) {}

  // As SharedWeights::Block; what is in the arena is to be filled. Errors: those of arena and budget.
  absl::StatusOr<SharedWeights::Block> Take(size_t bytes) const;

 private:
  Arena& arena_;
  SharedWeights* const shared_ = nullptr;
  const std::shared_ptr<MemoryBudget> budget_ = nullptr;
  const std::string name_;
};

}  // namespace runahead
