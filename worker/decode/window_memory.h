// Memory of static windows: [layers][slots][reserve] rows of so many bytes, on a device.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "worker/kv/static_window.h"

namespace runahead {

class WindowMemory {
 public:
  struct Shape {
    int64_t layers = 0, slots = 0, reserve = 0, row_bytes = 0;
  };
  // RESOURCE_EXHAUSTED names the size that the device does not have. The device outlives it.
  static absl::StatusOr<WindowMemory> Allocate(Device& device, const Shape& shape);

  // All slots' rows of a layer, and some rows of one slot.
  BufferRef Layer(int64_t layer) const;
  BufferRef Rows(int64_t layer, int64_t slot, int64_t begin, int64_t count) const;
  // Enqueues the copies of a move, in all layers.
  absl::Status Move(Stream& stream, int64_t slot, const StaticWindow::Move& move) const;

  int64_t bytes() const { return static_cast<int64_t>(memory_->size()); }
  const Shape& shape() const { return shape_; }

 private:
  WindowMemory(Device& device, const Shape& shape, std::shared_ptr<Buffer> memory)
      : device_(&device), shape_(shape), memory_(std::move(memory)) {}

  Device* device_;
  Shape shape_;
  std::shared_ptr<Buffer> memory_;
};

}  // namespace runahead
