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
  std::vector<CopyPart> x, kv;
  for (const ChunkPart& part : chunk.parts) {
    const StoredSequence& sequence = sequences[part.sequence];
    const int64_t seen = FirstSeen(window, sequence.stored), end = std::min(part.end, sequence.stored);
    if (const int64_t from = std::max({part.begin, sequence.x_resident, seen}); from < part.recompute_end) {
      AddRows(*store_.x_arena(), sequence, layer, from, part.recompute_end, slot.x, part.Row(from), x);
    }
    if (const int64_t from = std::max(part.tiles_end(), seen); from < end) {
      AddRows(store_.arena(), sequence, layer, from, end, slot.stored, part.Row(from), kv);
    }
  }
  RUNAHEAD_RETURN_IF_ERROR(device_.CopyAll(*stream_, std::move(x)));
  loaded.x_there = device_.Record(*stream_);
  RUNAHEAD_RETURN_IF_ERROR(device_.CopyAll(*stream_, std::move(kv)));
  loaded.kv_there = device_.Record(*stream_);
  return loaded;
}

absl::Status StagingRing::LoadBehindProduct(Stream& stream, int64_t layer, int64_t window, const StepChunk& chunk,
                                            absl::Span<const StoredSequence> sequences, const Loaded& loaded) {
  std::vector<CopyPart> kv;
  for (const ChunkPart& part : chunk.parts) {
    const StoredSequence& sequence = sequences[part.sequence];
    const int64_t from = std::max(part.recompute_end, FirstSeen(window, sequence.stored));
    const int64_t end = std::min({part.tiles_end(), part.end, sequence.stored});
    if (from >= end) continue;
    AddRows(store_.arena(), sequence, layer, from, end, slots_[loaded.slot].stored, part.Row(from), kv);
  }
  return device_.CopyAll(stream, std::move(kv));
}

// Copies of positions [begin, end) to rows first_row .. of `to`.
void StagingRing::AddRows(const KvArena& arena, const StoredSequence& sequence, int64_t layer, int64_t begin,
                          int64_t end, const BufferRef& to, int64_t first_row, std::vector<CopyPart>& parts) {
  const std::vector<KvSpan> spans = arena.Spans(sequence.blocks, layer, begin, end);
  const size_t row_bytes = spans.front().rows.size / static_cast<size_t>(spans.front().tokens);
  size_t at = static_cast<size_t>(first_row) * row_bytes;
  for (const KvSpan& span : spans) {
    AddPieces(span.rows, to.Slice(at, span.rows.size), kKvPieceBytes, parts);
    at += span.rows.size;
  }
}

void StagingRing::Settle() {
  device_.Record(*stream_).Wait().IgnoreError();
}

}  // namespace runahead
