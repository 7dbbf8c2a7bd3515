#include "kernels/cpu/form_place.h"

#include <optional>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Memory of another buffer, as long as which it counts in a budget.
class CountedBuffer : public Buffer {
 public:
  CountedBuffer(BufferRef memory, std::shared_ptr<MemoryBudget> budget)
      : Buffer(memory.data(), memory.size), memory_(std::move(memory)), budget_(std::move(budget)) {}
  ~CountedBuffer() override { budget_->GiveBack(size_); }

 private:
  const BufferRef memory_;
  const std::shared_ptr<MemoryBudget> budget_;
};

}  // namespace

absl::StatusOr<SharedWeights::Block> FormPlace::Take(size_t bytes) const {
  if (shared_ != nullptr && !name_.empty()) {
    RUNAHEAD_RETURN_IF_ERROR(budget_->Take(bytes));
    if (std::optional<SharedWeights::Block> block = shared_->Find(name_, bytes)) {
      block->memory = BufferRef::Whole(std::make_shared<CountedBuffer>(std::move(block->memory), budget_));
      return *std::move(block);
    }
    budget_->GiveBack(bytes);
  }
  RUNAHEAD_ASSIGN_OR_RETURN(BufferRef memory, arena_.Allocate(bytes));
  return SharedWeights::Block{std::move(memory), /*filled=*/false};
}

}  // namespace runahead
