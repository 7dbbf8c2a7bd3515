// A job's layer buffers: KV [0, held tokens) of a layer, contiguous, in one of a few slots.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "kernels/base/event.h"

namespace runahead {

// The fewest slots a job can run with: a layer that is sent, one that is computed, one that is received.
inline constexpr int64_t kMinLayerSlots = 3;

// Longest prefix (tokens) that `memory_bytes` can hold at all.
constexpr int64_t MaxPrefixTokens(size_t memory_bytes, int64_t row_bytes) {
  return static_cast<int64_t>(memory_bytes) / (kMinLayerSlots * row_bytes);
}

// Slots of one job over `memory`: all layers where they fit, else as many as fit, at least kMinLayerSlots. Used by the
// stage's thread only.
class LayerRing {
 public:
  // RESOURCE_EXHAUSTED, with both sizes, when fewer than the least slots fit.
  static absl::StatusOr<LayerRing> Create(BufferRef memory, int64_t layers, int64_t tokens, int64_t row_bytes);

  int64_t slots() const { return static_cast<int64_t>(free_.size()); }
  // The buffer of `layer`, and the event after which it may be written: its last tenant is attended, forwarded and
  // handed off.
  BufferRef Slot(int64_t layer) const;
  const Event& Free(int64_t layer) const { return free_[layer % slots()]; }
  // `layer` has the slot until `free` fires.
  void Occupy(int64_t layer, Event free) { free_[layer % slots()] = std::move(free); }

 private:
  LayerRing(BufferRef memory, size_t slot_bytes, int64_t slots)
      : memory_(std::move(memory)), slot_bytes_(slot_bytes), free_(slots) {}
  BufferRef memory_;
  size_t slot_bytes_;
  std::vector<Event> free_;
};

}  // namespace runahead
