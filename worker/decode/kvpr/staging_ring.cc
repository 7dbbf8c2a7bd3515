#include "worker/decode/kvpr/staging_ring.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/decode/kvpr/copy_pieces.h"

namespace runahead {
namespace {

constexpr int64_t kLeastSlots = 2;
// Fewer hold up copies while the device recomputes: chunks are made smaller first.
constexpr int64_t kGoodSlots = 4;

}  // namespace

StagingSize SizeOf(const StagingWish& wish) {
  int64_t tokens = std::max(wish.chunk_tokens, wish.least_tokens);
  tokens = (tokens + kChunkPageTokens - 1) / kChunkPageTokens * kChunkPageTokens;
  const int64_t wanted = std::max(wish.slots, kLeastSlots);
  const int64_t good = std::min(wanted, kGoodSlots);
  if (!wish.device_bytes.has_value()) return {tokens, wanted};
  const int64_t half = *wish.device_bytes / 2;
  while (tokens > wish.least_tokens && good * tokens * wish.row_bytes > half) {
    tokens = std::max(wish.least_tokens, tokens / 2 / kChunkPageTokens * kChunkPageTokens);
  }
  return {tokens, std::clamp(half / (tokens * wish.row_bytes), kLeastSlots, wanted)};
}

int64_t StagingRing::SlotBytes(const Options& options) {
  const bool quantised = options.stored_row_bytes != options.kv_row_bytes;
  const int64_t row = options.kv_row_bytes + (quantised ? options.stored_row_bytes : 0) + options.x_row_bytes;
  return options.chunk_pages * kChunkPageTokens * row;
}

absl::StatusOr<std::unique_ptr<StagingRing>> StagingRing::Create(Device& device, const KvStore& store,
                                                                 const Options& options) {
  RUNAHEAD_CHECK(options.slots >= 2 && options.chunk_pages >= 1);
  std::unique_ptr<StagingRing> ring(new StagingRing(device, store, options));
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory,
                            device.Allocate(static_cast<size_t>(ring->bytes()), MemoryKind::kDevice));
  const int64_t rows = options.chunk_pages * kChunkPageTokens;
  size_t at = 0;
  const auto take = [&](int64_t row_bytes) {
    const BufferRef part{memory, at, static_cast<size_t>(rows * row_bytes)};
    at += part.size;
    return part;
  };
  for (int64_t i = 0; i < options.slots; ++i) {
    Slot slot;
    slot.kv = take(options.kv_row_bytes);
    slot.stored = options.stored_row_bytes == options.kv_row_bytes ? slot.kv : take(options.stored_row_bytes);
    slot.x = take(options.x_row_bytes);
    ring->slots_.push_back(std::move(slot));
  }
  return ring;
}

StagingRing::StagingRing(Device& device, const KvStore& store, const Options& options)
    : device_(device), store_(store), options_(options), stream_(device.NewStream("kvpr load")) {}

// X first: what is made from it takes the device's time, KV only has to be there for attention.
absl::StatusOr<StagingRing::Loaded> StagingRing::Load(int64_t layer, int64_t window, const StepChunk& chunk,
                                                      absl::Span<const StoredSequence> sequences, const Event& after,
                                                      const std::shared_ptr<StepTimes>& times) {
  Loaded loaded{.slot = next_slot_, .x_there = {}, .kv_there = {}};
  Slot& slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % options_.slots;
  device_.WaitFor(*stream_, slot.free);
  device_.WaitFor(*stream_, after);
  const LaneSpan span(device_, *stream_, times, StepLane::kLink, layer);
  for (const ChunkPart& part : chunk.parts) {
    const StoredSequence& sequence = sequences[part.sequence];
    const int64_t from = std::max({part.begin, sequence.x_resident, FirstSeen(window, sequence.stored)});
    if (from >= part.recompute_end) continue;
    RUNAHEAD_RETURN_IF_ERROR(CopyRows(*store_.x_arena(), sequence, layer, from, part.recompute_end, slot.x,
                                      part.Row(from), options_.x_row_bytes));
  }
  loaded.x_there = device_.Record(*stream_);
  for (const ChunkPart& part : chunk.parts) {
    const StoredSequence& sequence = sequences[part.sequence];
    const int64_t from = std::max(part.recompute_end, FirstSeen(window, sequence.stored));
    const int64_t end = std::min(part.end, sequence.stored);
    if (from >= end) continue;
    RUNAHEAD_RETURN_IF_ERROR(
        CopyRows(store_.arena(), sequence, layer, from, end, slot.stored, part.Row(from), options_.stored_row_bytes));
  }
  loaded.kv_there = device_.Record(*stream_);
  return loaded;
}

// Positions [begin, end) to rows first_row .. of `to`.
absl::Status StagingRing::CopyRows(const KvArena& arena, const StoredSequence& sequence, int64_t layer, int64_t begin,
                                   int64_t end, const BufferRef& to, int64_t first_row, int64_t row_bytes) {
  auto at = static_cast<size_t>(first_row * row_bytes);
  for (const KvSpan& span : arena.Spans(sequence.blocks, layer, begin, end)) {
    RUNAHEAD_RETURN_IF_ERROR(CopyPieces(device_, *stream_, span.rows, to.Slice(at, span.rows.size), kKvPieceBytes));
    at += span.rows.size;
  }
  return absl::OkStatus();
}

void StagingRing::Settle() {
  device_.Record(*stream_).Wait().IgnoreError();
}

}  // namespace runahead
