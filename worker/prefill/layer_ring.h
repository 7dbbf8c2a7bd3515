// The layer buffers of a job, or of those that share a pass: KV [0, held tokens) of a layer, contiguous, in one of a
// few slots, and X beside it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "kernels/base/event.h"

namespace runahead {

// The fewest slots a job can run with: a layer that is sent, one that is computed, one that is received.
inline constexpr int64_t kMinLayerSlots = 3;

// What a layer's buffer holds: rows of KV of all tokens that are attended over and, where the job hands X off, of X of
// its own part. Sizes are of one row, in bytes.
struct LayerRows {
  int64_t kv = 0;
  int64_t kv_row_bytes = 0;
  int64_t x = 0;
  int64_t x_row_bytes = 0;

  size_t kv_bytes() const { return static_cast<size_t>(kv * kv_row_bytes); }
  size_t x_bytes() const { return static_cast<size_t>(x * x_row_bytes); }
  size_t bytes() const { return kv_bytes() + x_bytes(); }
};

// Longest prefix (tokens) that `memory_bytes` can hold at all, of whose every token a layer takes `row_bytes`.
constexpr int64_t MaxPrefixTokens(size_t memory_bytes, int64_t row_bytes) {
  return static_cast<int64_t>(memory_bytes) / (kMinLayerSlots * row_bytes);
}

// Where a job's rows lie in a buffer that it shares with others.
struct LayerPart {
  LayerRows rows;
  int64_t kv_begin = 0;  // the row of the buffer's KV at which its own begin
  int64_t x_begin = 0;   // likewise of X
};

// Slots over `memory`: all layers where they fit, else as many as fit, at least kMinLayerSlots. Used by the stage's
// thread only.
class LayerRing {
 public:
  // RESOURCE_EXHAUSTED, with both sizes, when fewer than the least slots fit.
  static absl::StatusOr<LayerRing> Create(BufferRef memory, int64_t layers, const LayerRows& rows);
  // The same slots as one of several jobs has them, that share each: its own part of them, which is free when it is
  // done with it, whatever the others do.
  LayerRing Part(const LayerPart& part) const;

  int64_t slots() const { return static_cast<int64_t>(free_.size()); }
  const LayerRows& rows() const { return own_.rows; }
  // The buffers of `layer`, its KV and its X (which may be empty), and the event after which they may be written: their
  // last tenant is attended, forwarded and handed off.
  BufferRef Kv(int64_t layer) const;
  BufferRef X(int64_t layer) const;
  const Event& Free(int64_t layer) const { return free_[layer % slots()]; }
  // `layer` has the slot until `free` fires.
  void Occupy(int64_t layer, Event free) { free_[layer % slots()] = std::move(free); }

  // The same of all who share the slots; KV and X of one who shares them with nobody.
  BufferRef AllKv(int64_t layer) const;
  BufferRef AllX(int64_t layer) const;

 private:
  LayerRing(BufferRef memory, const LayerRows& all, LayerPart own, int64_t slots)
      : memory_(std::move(memory)), all_(all), own_(std::move(own)), free_(slots) {}

  BufferRef memory_;
  LayerRows all_;
  LayerPart own_;
  std::vector<Event> free_;
};

}  // namespace runahead
