#include "scheduler/recompute/host_path.h"

#include <algorithm>

namespace runahead {
namespace {

constexpr int kPathClasses = 3;

// Down to where the pieces of a class reach.
int64_t ClassEnd(const SplitBounds& whole, int which) {
  if (which == 0) return whole.most;
  return which == 1 ? whole.cheap : whole.least;
}

}  // namespace

HostPath::HostPath(absl::Span<const LaneShape> shapes, int64_t tile, bool host_lane) : shapes_(shapes), tile_(tile) {
  std::vector<SplitBounds> whole;
  for (const LaneShape& shape : shapes) {
    ends_.push_back(shape.WindowBegin());
    whole.push_back(BoundsOfSplit(shape, ends_.back(), tile));
    room_.cheap_tiles += whole.back().CheapTiles(tile);
    room_.tiles += whole.back().Tiles(tile);
  }
  runs_.push_back({0, 0, shapes.empty() ? 0 : ends_[0], room_});
  for (int which = 0; host_lane && which < kPathClasses; ++which) AddRuns(whole, which);
}

void HostPath::AddRuns(absl::Span<const SplitBounds> whole, int which) {
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const LaneShape& shape = shapes_[i];
    if (!shape.may_attend_on_host || shape.WindowBegin() == shape.length) continue;
    const int64_t to = RoundUpTo(shape.piece_tokens, ClassEnd(whole[i], which));
    if (to >= ends_[i]) continue;
    runs_.push_back({i, pieces_, ends_[i], room_});
    room_ = Moved(room_, shape, ends_[i], to);
    pieces_ += (ends_[i] - to) / shape.piece_tokens;
    ends_[i] = to;
  }
}

SplitRoom HostPath::Moved(SplitRoom room, const LaneShape& shape, int64_t from, int64_t to) const {
  const SplitBounds before = BoundsOfSplit(shape, from, tile_);
  const SplitBounds after = BoundsOfSplit(shape, to, tile_);
  room.host_rows += from - to;
  room.cheap_tiles += after.CheapTiles(tile_) - before.CheapTiles(tile_);
  room.tiles += after.Tiles(tile_) - before.Tiles(tile_);
  return room;
}

SplitRoom HostPath::At(int64_t pieces) const {
  if (shapes_.empty()) return {};
  const auto after = std::upper_bound(runs_.begin() + 1, runs_.end(), pieces,
                                      [](int64_t value, const Run& run) { return value < run.pieces_before; });
  const Run& run = *(after - 1);
  const LaneShape& shape = shapes_[run.sequence];
  return Moved(run.room, shape, run.end, run.end - (pieces - run.pieces_before) * shape.piece_tokens);
}

void HostPath::Cut(int64_t pieces, absl::Span<LaneCuts> cuts) const {
  for (size_t i = 0; i < shapes_.size(); ++i) cuts[i].host_end = cuts[i].streamed_end = shapes_[i].WindowBegin();
  for (size_t i = 1; i < runs_.size() && runs_[i].pieces_before < pieces; ++i) {
    const int64_t next = i + 1 < runs_.size() ? runs_[i + 1].pieces_before : pieces_;
    const int64_t taken = std::min(next, pieces) - runs_[i].pieces_before;
    cuts[runs_[i].sequence].streamed_end -= taken * shapes_[runs_[i].sequence].piece_tokens;
  }
}

}  // namespace runahead
