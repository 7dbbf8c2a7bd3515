#include "worker/model/model.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {

absl::StatusOr<Tensor> ForwardScratch::Get(int slot, DType dtype, int64_t rows, int64_t cols) {
  if (static_cast<size_t>(slot) >= buffers_.size()) buffers_.resize(slot + 1);
  const size_t bytes = static_cast<size_t>(rows * cols) * DTypeSize(dtype);
  if (buffers_[slot] == nullptr || buffers_[slot]->size() < bytes) {
    buffers_[slot] = nullptr;
    RUNAHEAD_ASSIGN_OR_RETURN(buffers_[slot], device_.Allocate(bytes, MemoryKind::kDevice));
  }
  return MakeTensor(BufferRef::Whole(buffers_[slot]), dtype, rows, cols);
}

}  // namespace runahead
