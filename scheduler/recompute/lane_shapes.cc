#include "scheduler/recompute/lane_shapes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

template <typename... Parts>
absl::Status RefuseShape(size_t sequence, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("sequence ", sequence, ": ", parts...));
}

absl::Status CheckLaneShape(const LaneShape& shape, size_t i, int64_t tile) {
  if (shape.length < 1) return RefuseShape(i, "length: ", shape.length, " is not at least 1");
  if (shape.piece_tokens < tile || shape.piece_tokens % tile != 0) {
    return RefuseShape(i, "piece_tokens: ", shape.piece_tokens, " is no multiple of the tile of ", tile);
  }
  if (shape.x_stored < 0 || shape.x_stored > shape.length) {
    return RefuseShape(i, "x_stored: ", shape.x_stored, " is not between 0 and the length, ", shape.length);
  }
  if (shape.l_min < 0 || shape.l_min > shape.x_stored) {
    return RefuseShape(i, "l_min: ", shape.l_min, " is beyond the ", shape.x_stored,
                       " positions that X is stored for; what works is 0 to ", shape.x_stored,
                       ", or X of more positions");
  }
  if (shape.x_resident < 0 || shape.x_resident > shape.x_stored) {
    return RefuseShape(i, "x_resident: ", shape.x_resident, " is not between 0 and x_stored, ", shape.x_stored);
  }
  if (shape.resident_from < 0) return RefuseShape(i, "resident_from: ", shape.resident_from, " is not at least 0");
  return absl::OkStatus();
}

}  // namespace

int64_t RoundDownTo(int64_t multiple, int64_t value) {
  return value / multiple * multiple;
}

int64_t RoundUpTo(int64_t multiple, int64_t value) {
  return (value + multiple - 1) / multiple * multiple;
}

int64_t LaneShape::WindowBegin() const {
  if (resident_from >= length) return length;
  return std::min(length, RoundUpTo(piece_tokens, resident_from));
}

absl::Status CheckLaneShapes(absl::Span<const LaneShape> shapes, int64_t tile) {
  if (tile < 1) return absl::InvalidArgumentError(absl::StrCat("tile: ", tile, " is not at least 1"));
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (absl::Status status = CheckLaneShape(shapes[i], i, tile); !status.ok()) return status;
  }
  return absl::OkStatus();
}

SplitBounds BoundsOfSplit(const LaneShape& shape, int64_t end, int64_t tile) {
  const int64_t forced = std::min(shape.l_min, end);
  const int64_t least = RoundUpTo(tile, forced);
  const int64_t last = std::min(shape.x_stored, end), most = RoundDownTo(tile, last);
  if (most < least) return {forced, forced, forced, std::max(forced, last)};
  return {least, std::clamp(RoundDownTo(tile, shape.x_resident), least, most), most, last};
}

int64_t StreamedX(const LaneShape& shape, int64_t l, int64_t tile) {
  return l > shape.x_resident ? l - RoundDownTo(tile, shape.x_resident) : 0;
}

LaneRows RowsOfCuts(absl::Span<const LaneShape> shapes, absl::Span<const LaneCuts> cuts, int64_t tile) {
  LaneRows rows;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const LaneCuts& cut = cuts[i];
    rows.recomputed += cut.recomputed_end;
    rows.computed += RoundUpTo(tile, cut.recomputed_end);
    rows.x_streamed += StreamedX(shapes[i], cut.recomputed_end, tile);
    rows.streamed += cut.streamed_end - cut.recomputed_end;
    rows.host += cut.host_end - cut.streamed_end;
    rows.resident += shapes[i].length - cut.host_end;
  }
  return rows;
}

}  // namespace runahead
