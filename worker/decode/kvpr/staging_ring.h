// Device memory that a step's chunks pass through on their way from the host's stores, and the stream that copies them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/device.h"
#include "worker/decode/kvpr/step_chunks.h"
#include "worker/decode/kvpr/step_times.h"
#include "worker/kv/store.h"

namespace runahead {

// What the stores hold of a step's sequences, as the loads of a chunk need it.
struct StoredSequence {
  std::vector<int32_t> blocks;
  int64_t stored = 0;      // KV and X of positions [0, stored) are in the stores when a step's loads run; its query is
                           // at the next one
  int64_t x_resident = 0;  // X of [0, x_resident) does not travel: it is on the device
};

// What a ring is to be like.
struct StagingWish {
  int64_t row_bytes = 0;     // of a slot
  int64_t least_tokens = 0;  // that a chunk must hold
  int64_t chunk_tokens = 0, slots = 0;
  std::optional<int64_t> device_bytes = {};  // of which half is for the ring, where that is enough for the least
};
struct StagingSize {
  int64_t chunk_tokens = 0;  // whole pages
  int64_t slots = 0;         // at least 2
};
StagingSize SizeOf(const StagingWish& wish);

// The slots of the ring. A slot has room for a chunk: KV as attention reads it, [pages * kChunkPageTokens] rows; KV as
// the store holds it, where that is quantised; and X. Loads of chunks enter the slots in turn, and each waits, on its
// stream, until its slot is free. Used by the decode loop's thread.
class StagingRing {
 public:
  struct Options {
    int64_t chunk_pages = 0;
    int64_t slots = 0;  // at least 2
    int64_t kv_row_bytes = 0;
    int64_t stored_row_bytes = 0;  // of the store's KV; other than kv_row_bytes where it is quantised
    int64_t x_row_bytes = 0;       // 0: no X
  };
  static int64_t SlotBytes(const Options& options);
  // Takes slots * SlotBytes of device memory. Device and store outlive the ring.
  static absl::StatusOr<std::unique_ptr<StagingRing>> Create(Device& device, const KvStore& store,
                                                             const Options& options);

  // A chunk of one layer on its way, or there.
  struct Loaded {
    int64_t slot = 0;
    Event x_there, kv_there;
  };
  // Enqueues the copies of `chunk` in `layer` into the next slot, behind `after`: what the step before wrote of the
  // layer. `sequences` are the step's; what the layer's `window` (0: none) hides from them stays away.
  absl::StatusOr<Loaded> Load(int64_t layer, int64_t window, const StepChunk& chunk,
                              absl::Span<const StoredSequence> sequences, const Event& after,
                              const std::shared_ptr<StepTimes>& times);
  // Enqueues, on the stream of the product that writes the chunk's whole tiles, copies of what KV there is in the tiles
  // in which recomputation ends. Nothing where it ends with tiles, or with the sequence.
  absl::Status LoadBehindProduct(Stream& stream, int64_t layer, int64_t window, const StepChunk& chunk,
                                 absl::Span<const StoredSequence> sequences, const Loaded& loaded);
  // From `free` on the slot may be filled again.
  void Release(const Loaded& loaded, const Event& free) { slots_[loaded.slot].free = free; }

  BufferRef Kv(const Loaded& loaded) const { return slots_[loaded.slot].kv; }
  BufferRef X(const Loaded& loaded) const { return slots_[loaded.slot].x; }
  // Rows [first, first + count) of KV as the store holds it; they lie where they lie in Kv.
  BufferRef StoredRows(const Loaded& loaded, int64_t first, int64_t count) const {
    const int64_t row = options_.stored_row_bytes;
    return slots_[loaded.slot].stored.Slice(static_cast<size_t>(first * row), static_cast<size_t>(count * row));
  }
  int64_t slots() const { return options_.slots; }
  int64_t bytes() const { return options_.slots * SlotBytes(options_); }

  // Waits until no copy reads the stores any more.
  void Settle();

 private:
  struct Slot {
    BufferRef kv, stored, x;
    Event free;
  };

  StagingRing(Device& device, const KvStore& store, const Options& options);
  static void AddRows(const KvArena& arena, const StoredSequence& sequence, int64_t layer, int64_t begin, int64_t end,
                      const BufferRef& to, int64_t first_row, std::vector<CopyPart>& parts);

  Device& device_;
  const KvStore& store_;
  const Options options_;
  const std::unique_ptr<Stream> stream_;
  std::vector<Slot> slots_;
  int64_t next_slot_ = 0;
};

}  // namespace runahead
