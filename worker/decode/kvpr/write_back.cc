#include "worker/decode/kvpr/write_back.h"

#include <cstring>
#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/decode/kvpr/copy_pieces.h"

namespace runahead {
namespace {

// Layers that may be on their way: a layer's rows are few and small, so two would do on most links.
constexpr int64_t kLayersUnderWay = 4;

// Where a position's row is in one layer of an arena.
std::byte* RowIn(const KvArena& arena, const OwnRow& row, int64_t layer) {
  return arena.Spans(row.blocks, layer, row.position, row.position + 1).front().rows.data();
}

}  // namespace

int64_t WriteBack::DeviceBytes(const Options& options) {
  return kLayersUnderWay * options.rows * (options.stored_row_bytes + options.x_row_bytes);
}

absl::StatusOr<std::unique_ptr<WriteBack>> WriteBack::Create(Device& device, const KvStore& store,
                                                             const Options& options) {
  std::unique_ptr<WriteBack> made(new WriteBack(device, store, options));
  const auto allocate = [&](int64_t row_bytes, MemoryKind kind) -> absl::StatusOr<BufferRef> {
    if (row_bytes == 0) return BufferRef{};
    RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory,
                              device.Allocate(static_cast<size_t>(options.rows * row_bytes), kind));
    return BufferRef::Whole(std::move(memory));
  };
  for (int64_t i = 0; i < kLayersUnderWay; ++i) {
    Lane lane;
    RUNAHEAD_ASSIGN_OR_RETURN(lane.kv, allocate(options.stored_row_bytes, MemoryKind::kDevice));
    RUNAHEAD_ASSIGN_OR_RETURN(lane.x, allocate(options.x_row_bytes, MemoryKind::kDevice));
    RUNAHEAD_ASSIGN_OR_RETURN(lane.host_kv, allocate(options.stored_row_bytes, MemoryKind::kHost));
    RUNAHEAD_ASSIGN_OR_RETURN(lane.host_x, allocate(options.x_row_bytes, MemoryKind::kHost));
    made->lanes_.push_back(std::move(lane));
  }
  return made;
}

WriteBack::WriteBack(Device& device, const KvStore& store, const Options& options)
    : device_(device), store_(store), options_(options), stream_(device.NewStream("kvpr store")) {}

// One copy of all rows, and the host spreads them over their blocks: a copy a row would cost its latency each.
absl::StatusOr<Event> WriteBack::Send(int64_t layer, const std::vector<OwnRow>& rows, const Event& filled,
                                      const std::shared_ptr<StepTimes>& times) {
  Lane& lane = Of(layer);
  std::vector<std::byte*> kv_rows, x_rows;  // of x_rows null: this one has no X
  bool any_x = false;
  for (const OwnRow& row : rows) {
    kv_rows.push_back(RowIn(store_.arena(), row, layer));
    x_rows.push_back(row.with_x ? RowIn(*store_.x_arena(), row, layer) : nullptr);
    any_x = any_x || row.with_x;
  }
  const auto sent = [&](int64_t row_bytes) { return rows.size() * static_cast<size_t>(row_bytes); };
  const auto copy = [&](const BufferRef& from, const BufferRef& to, size_t bytes) {
    return CopyPieces(device_, *stream_, from.Slice(0, bytes), to.Slice(0, bytes), kKvPieceBytes);
  };
  const size_t kv_bytes = sent(options_.stored_row_bytes), x_bytes = any_x ? sent(options_.x_row_bytes) : 0;
  device_.WaitFor(*stream_, filled);
  {
    const LaneSpan span(device_, *stream_, times, StepLane::kStore, layer);
    RUNAHEAD_RETURN_IF_ERROR(copy(lane.kv, lane.host_kv, kv_bytes));
    RUNAHEAD_RETURN_IF_ERROR(copy(lane.x, lane.host_x, x_bytes));
    device_.Call(*stream_, [kv_rows = std::move(kv_rows), x_rows = std::move(x_rows), kv = lane.host_kv,
                            x = lane.host_x, kv_size = static_cast<size_t>(options_.stored_row_bytes),
                            x_size = static_cast<size_t>(options_.x_row_bytes)] {
      for (size_t i = 0; i < kv_rows.size(); ++i) {
        std::memcpy(kv_rows[i], kv.data() + i * kv_size, kv_size);
        if (x_rows[i] != nullptr) std::memcpy(x_rows[i], x.data() + i * x_size, x_size);
      }
    });
  }
  lane.free = device_.Record(*stream_);
  return lane.free;
}

absl::StatusOr<Event> WriteBack::Save(int64_t layer, absl::Span<const int32_t> blocks, int64_t first,
                                      const BufferRef& rows, const Event& filled,
                                      const std::shared_ptr<StepTimes>& times) {
  const int64_t count = static_cast<int64_t>(rows.size) / options_.stored_row_bytes;
  device_.WaitFor(*stream_, filled);
  const LaneSpan span(device_, *stream_, times, StepLane::kStore, layer);
  size_t at = 0;
  for (const KvSpan& to : store_.arena().Spans(blocks, layer, first, first + count)) {
    RUNAHEAD_RETURN_IF_ERROR(CopyPieces(device_, *stream_, rows.Slice(at, to.rows.size), to.rows, kKvPieceBytes));
    at += to.rows.size;
  }
  return device_.Record(*stream_);
}

void WriteBack::Settle() {
  device_.Record(*stream_).Wait().IgnoreError();
}

}  // namespace runahead
