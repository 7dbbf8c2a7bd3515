#include "worker/decode/window_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace runahead {

absl::StatusOr<WindowMemory> WindowMemory::Allocate(Device& device, const Shape& shape) {
  const int64_t bytes = shape.layers * shape.slots * shape.reserve * shape.row_bytes;
  absl::StatusOr<std::shared_ptr<Buffer>> memory = device.Allocate(static_cast<size_t>(bytes), MemoryKind::kDevice);
  if (!memory.ok()) {
    return absl::Status(memory.status().code(), absl::StrFormat("static windows of %d sequences take %d bytes: %s",
                                                                shape.slots, bytes, memory.status().message()));
  }
  return WindowMemory(device, shape, *std::move(memory));
}

BufferRef WindowMemory::Layer(int64_t layer) const {
  const auto bytes = static_cast<size_t>(shape_.slots * shape_.reserve * shape_.row_bytes);
  return {memory_, static_cast<size_t>(layer) * bytes, bytes};
}

BufferRef WindowMemory::Rows(int64_t layer, int64_t slot, int64_t begin, int64_t count) const {
  return Layer(layer).Slice(static_cast<size_t>((slot * shape_.reserve + begin) * shape_.row_bytes),
                            static_cast<size_t>(count * shape_.row_bytes));
}

// In pieces that do not overlap with where they go.
absl::Status WindowMemory::Move(Stream& stream, int64_t slot, const StaticWindow::Move& move) const {
  const int64_t most = move.from - move.to;
  for (int64_t layer = 0; layer < shape_.layers; ++layer) {
    for (int64_t done = 0; done < move.rows; done += most) {
      const int64_t rows = std::min(most, move.rows - done);
      RUNAHEAD_RETURN_IF_ERROR(
          device_->Copy(stream, Rows(layer, slot, move.from + done, rows), Rows(layer, slot, move.to + done, rows)));
    }
  }
  return absl::OkStatus();
}

}  // namespace runahead
