#include "worker/decode/kvpr/write_back.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/decode/kvpr/copy_pieces.h"

namespace runahead {
namespace {

// Layers that may be on their way: a layer's rows are few and small, so two would do on most links.
constexpr int64_t kLayersUnderWay = 4;

// Rows of any bytes, as a tensor of elements of four.
Tensor FourByteRows(const BufferRef& rows, int64_t row_bytes) {
  RUNAHEAD_CHECK(row_bytes % 4 == 0);
  return MakeTensor(rows, DType::kF32, static_cast<int64_t>(rows.size) / row_bytes, row_bytes / 4);
}

}  // namespace

int64_t WriteBack::DeviceBytes(const Options& options) {
  return kLayersUnderWay * options.rows * (options.stored_row_bytes + options.x_row_bytes);
}

absl::StatusOr<std::unique_ptr<WriteBack>> WriteBack::Create(Device& device, const KvStore& store,
                                                             const Options& options) {
  std::unique_ptr<WriteBack> made(new WriteBack(device, store, options));
  const auto allocate = [&](int64_t row_bytes) -> absl::StatusOr<BufferRef> {
    if (row_bytes == 0) return BufferRef{};
    RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory,
                              device.Allocate(static_cast<size_t>(options.rows * row_bytes), MemoryKind::kDevice));
    return BufferRef::Whole(std::move(memory));
  };
  for (int64_t i = 0; i < kLayersUnderWay; ++i) {
    Lane lane;
    RUNAHEAD_ASSIGN_OR_RETURN(lane.kv, allocate(options.stored_row_bytes));
    RUNAHEAD_ASSIGN_OR_RETURN(lane.x, allocate(options.x_row_bytes));
    made->lanes_.push_back(std::move(lane));
  }
  return made;
}

WriteBack::WriteBack(Device& device, const KvStore& store, const Options& options)
    : device_(device), store_(store), options_(options), stream_(device.NewStream("kvpr store")) {}

// The device stores the rows itself, each where it belongs: copies would cost their latency each, and behind one copy
// of all the host would have to spread them.
absl::StatusOr<Event> WriteBack::Send(int64_t layer, const std::vector<OwnRow>& rows, const Event& filled,
                                      const std::shared_ptr<StepTimes>& times) {
  Lane& lane = Of(layer);
  std::vector<RowMove> kv_rows, x_rows;
  for (const OwnRow& row : rows) {
    const RowMove move{static_cast<int32_t>(kv_rows.size()),
                       static_cast<int32_t>(KvArena::RowOf(row.blocks, row.position))};
    kv_rows.push_back(move);
    if (row.with_x) x_rows.push_back(move);
  }
  device_.WaitFor(*stream_, filled);
  {
    const LaneSpan span(device_, *stream_, times, StepLane::kStore, layer);
    RUNAHEAD_RETURN_IF_ERROR(Store(lane.kv, std::move(kv_rows), store_.arena(), layer, options_.stored_row_bytes));
    if (!x_rows.empty()) {
      RUNAHEAD_RETURN_IF_ERROR(Store(lane.x, std::move(x_rows), *store_.x_arena(), layer, options_.x_row_bytes));
    }
  }
  lane.free = device_.Record(*stream_);
  return lane.free;
}

absl::Status WriteBack::Store(const BufferRef& from, std::vector<RowMove> rows, const KvArena& to, int64_t layer,
                              int64_t row_bytes) {
  return device_.ExchangeRows(*stream_, FourByteRows(from, row_bytes), std::move(rows),
                              FourByteRows(to.Layer(layer), row_bytes));
}

absl::StatusOr<Event> WriteBack::Save(int64_t layer, absl::Span<const int32_t> blocks, int64_t first,
                                      const BufferRef& rows, const Event& filled,
                                      const std::shared_ptr<StepTimes>& times) {
  const int64_t count = static_cast<int64_t>(rows.size) / options_.stored_row_bytes;
  device_.WaitFor(*stream_, filled);
  const LaneSpan span(device_, *stream_, times, StepLane::kStore, layer);
  size_t at = 0;
  std::vector<CopyPart> parts;
  for (const KvSpan& to : store_.arena().Spans(blocks, layer, first, first + count)) {
    AddPieces(rows.Slice(at, to.rows.size), to.rows, kKvPieceBytes, parts);
    at += to.rows.size;
  }
  RUNAHEAD_RETURN_IF_ERROR(device_.CopyAll(*stream_, std::move(parts)));
  return device_.Record(*stream_);
}

void WriteBack::Settle() {
  device_.Record(*stream_).Wait().IgnoreError();
}

}  // namespace runahead
