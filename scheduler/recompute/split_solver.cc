#include "scheduler/recompute/split_solver.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/status_macros.h"
#include "scheduler/recompute/host_path.h"

namespace runahead {
namespace {

// How many pieces in a row may be no better before the search for a host lane ends. Rounding, and pieces that hold X in
// part, make the time uneven from piece to piece.
constexpr int64_t kTriedPieces = 64;
// Times that differ by less are the same.
constexpr double kSameTime = 1e-12;

// What falls as l grows against what grows with it.
double Falling(const LaneTimes& times) {
  return std::max(times.link_s, times.shared_s);
}
double Growing(const LaneTimes& times) {
  return std::max(times.device_s, times.host_s);
}

// All times are linear between `from` and `to`. Where Falling meets Growing, as a share of the way; 1: it never does.
double MeetingShare(const LaneTimes& from, const LaneTimes& to) {
  const auto share = [&](double LaneTimes::*falling, double LaneTimes::*growing) {
    const double before = from.*falling - from.*growing;
    const double after = to.*falling - to.*growing;
    if (before <= 0) return 0.0;
    return after > 0 ? 1.0 : before / (before - after);
  };
  const auto first = [&](double LaneTimes::*falling) {
    return std::min(share(falling, &LaneTimes::device_s), share(falling, &LaneTimes::host_s));
  };
  return std::max(first(&LaneTimes::link_s), first(&LaneTimes::shared_s));
}

double LayerAt(double share, const LaneTimes& from, const LaneTimes& to) {
  const auto at = [&](double LaneTimes::*time) { return from.*time + share * (to.*time - from.*time); };
  return std::max(std::max(at(&LaneTimes::link_s), at(&LaneTimes::shared_s)),
                  std::max(at(&LaneTimes::device_s), at(&LaneTimes::host_s)));
}

class SplitSearch {
 public:
  SplitSearch(SplitObjective objective, const LaneCosts& costs, absl::Span<const LaneShape> shapes, int64_t tile)
      : objective_(objective),
        costs_(costs),
        shapes_(shapes),
        tile_(tile),
        x_pays_(objective == SplitObjective::kRow || costs.x_bytes < costs.kv_bytes),
        path_(shapes, tile, objective == SplitObjective::kStep && std::isfinite(costs.host_attend_s)),
        least_(RowsOfCuts(shapes, LeastCuts(), tile)) {}

  LanePlan Least() const { return PlanOf(LeastCuts()); }

  LanePlan Solve() const {
    Choice best = BestAt(0);
    if (path_.pieces() > 0) {
      const int64_t middle = RelaxedBest();
      TryFrom(middle, -1, &best);
      TryFrom(middle + 1, 1, &best);
    }
    return PlanOf(CutsOf(best));
  }

 private:
  struct Choice {
    int64_t pieces = 0;    // of the host lane
    int64_t tiles = 0;     // of l, above the smallest
    double layer_s = 0;    // with them
    double relaxed_s = 0;  // were l not rounded
    int64_t tails = 0;     // parts of a tile that are recomputed beside all tiles
  };

  std::vector<LaneCuts> LeastCuts() const {
    std::vector<LaneCuts> cuts(shapes_.size());
    path_.Cut(0, absl::MakeSpan(cuts));
    for (size_t i = 0; i < cuts.size(); ++i) {
      cuts[i].recomputed_end = BoundsOfSplit(shapes_[i], cuts[i].streamed_end, tile_).least;
    }
    return cuts;
  }

  LaneTimes TimesAt(const SplitRoom& room, int64_t tiles) const {
    LaneRows rows = least_;
    rows.recomputed += tiles * tile_;
    rows.computed += tiles * tile_;
    rows.x_streamed += std::max<int64_t>(0, tiles - room.cheap_tiles) * tile_;
    rows.streamed -= tiles * tile_ + room.host_rows;
    rows.host = room.host_rows;
    return TimesOfLanes(objective_, costs_, rows);
  }

  // The best l for a host lane of so many pieces.
  Choice BestAt(int64_t pieces) const {
    const SplitRoom room = path_.At(pieces);
    int64_t from = 0, to = room.cheap_tiles;
    LaneTimes begin = TimesAt(room, from), end = TimesAt(room, to);
    if (x_pays_ && Falling(end) > Growing(end)) {
      from = to;
      to = room.tiles;
      begin = end;
      end = TimesAt(room, to);
    }
    const double share = MeetingShare(begin, end);
    const int64_t below = from + static_cast<int64_t>(share * static_cast<double>(to - from));
    const int64_t above = std::min(below + 1, to);
    const double below_s = TimesAt(room, below).layer_s, above_s = TimesAt(room, above).layer_s;
    const bool up = above_s < below_s * (1 - kSameTime);
    Choice choice{pieces, up ? above : below, up ? above_s : below_s, LayerAt(share, begin, end)};
    if (choice.tiles == room.tiles) AddTails(&choice);
    return choice;
  }

  // The sequences in which l can still go to the end of a part of a tile, those with the longest part first.
  std::vector<size_t> TailsOf(absl::Span<const LaneCuts> cuts) const {
    const auto tail = [&](size_t i) {
      const SplitBounds bounds = BoundsOfSplit(shapes_[i], cuts[i].streamed_end, tile_);
      return cuts[i].recomputed_end == bounds.most ? bounds.end - bounds.most : 0;
    };
    std::vector<size_t> tails;
    for (size_t i = 0; i < cuts.size(); ++i) {
      if (tail(i) > 0) tails.push_back(i);
    }
    std::stable_sort(tails.begin(), tails.end(), [&](size_t a, size_t b) { return tail(a) > tail(b); });
    return tails;
  }

  // As many of them, all tiles being taken, as make the layer shorter.
  void AddTails(Choice* choice) const {
    const std::vector<LaneCuts> cuts = CutsOf(*choice);
    LaneRows rows = RowsOfCuts(shapes_, cuts, tile_);
    for (const size_t i : TailsOf(cuts)) {
      const int64_t from = cuts[i].recomputed_end, to = BoundsOfSplit(shapes_[i], cuts[i].streamed_end, tile_).end;
      rows.recomputed += to - from;
      rows.streamed -= to - from;
      rows.computed += RoundUpTo(tile_, to) - RoundUpTo(tile_, from);
      rows.x_streamed += StreamedX(shapes_[i], to, tile_) - StreamedX(shapes_[i], from, tile_);
      const double layer_s = TimesOfLanes(objective_, costs_, rows).layer_s;
      if (!(layer_s < choice->layer_s * (1 - kSameTime))) return;
      choice->layer_s = layer_s;
      ++choice->tails;
    }
  }

  // Without rounding, and where X ends at borders of pieces, the time is convex in the pieces: its smallest minimum is
  // found by halving. Elsewhere that is near it.
  int64_t RelaxedBest() const {
    int64_t first = 1, last = path_.pieces();
    while (first < last) {
      const int64_t middle = (first + last) / 2;
      if (BestAt(middle + 1).relaxed_s < BestAt(middle).relaxed_s) {
        first = middle + 1;
      } else {
        last = middle;
      }
    }
    return first;
  }

  // Tries `pieces`, then more or fewer, until kTriedPieces in a row are not better than `best`.
  void TryFrom(int64_t pieces, int64_t direction, Choice* best) const {
    for (int64_t since = 0; since < kTriedPieces && pieces >= 1 && pieces <= path_.pieces(); pieces += direction) {
      const Choice choice = BestAt(pieces);
      const bool better = choice.layer_s < best->layer_s * (1 - kSameTime);
      if (better) *best = choice;
      since = better ? 0 : since + 1;
    }
  }

  // Each sequence gets `taken` tiles of what it can take, all as many as each other, as far as it goes.
  static void FillEvenly(int64_t tiles, absl::Span<const int64_t> most, absl::Span<int64_t> taken) {
    int64_t level = 0, none = tiles + 1;  // a level of `none` is too much, unless all are full
    const auto sum = [&](int64_t at) {
      int64_t all = 0;
      for (const int64_t one : most) all += std::min(one, at);
      return all;
    };
    while (none - level > 1) {
      const int64_t middle = level + (none - level) / 2;
      (sum(middle) <= tiles ? level : none) = middle;
    }
    int64_t left = tiles - sum(level);
    for (size_t i = 0; i < most.size(); ++i) {
      const bool more = left > 0 && most[i] > level;
      taken[i] = std::min(most[i], level) + (more ? 1 : 0);
      left -= more ? 1 : 0;
    }
  }

  std::vector<LaneCuts> CutsOf(const Choice& choice) const {
    std::vector<LaneCuts> cuts(shapes_.size());
    path_.Cut(choice.pieces, absl::MakeSpan(cuts));
    std::vector<int64_t> cheap, dear, cheap_taken(cuts.size()), dear_taken(cuts.size());
    int64_t cheap_tiles = 0;
    for (size_t i = 0; i < cuts.size(); ++i) {
      const SplitBounds bounds = BoundsOfSplit(shapes_[i], cuts[i].streamed_end, tile_);
      cuts[i].recomputed_end = bounds.least;
      cheap.push_back(bounds.CheapTiles(tile_));
      dear.push_back(bounds.Tiles(tile_) - cheap.back());
      cheap_tiles += cheap.back();
    }
    FillEvenly(std::min(choice.tiles, cheap_tiles), cheap, absl::MakeSpan(cheap_taken));
    FillEvenly(std::max<int64_t>(0, choice.tiles - cheap_tiles), dear, absl::MakeSpan(dear_taken));
    for (size_t i = 0; i < cuts.size(); ++i) cuts[i].recomputed_end += (cheap_taken[i] + dear_taken[i]) * tile_;
    if (choice.tails == 0) return cuts;
    const std::vector<size_t> tails = TailsOf(cuts);
    for (int64_t i = 0; i < choice.tails; ++i) {
      LaneCuts& cut = cuts[tails[i]];
      cut.recomputed_end = BoundsOfSplit(shapes_[tails[i]], cut.streamed_end, tile_).end;
    }
    return cuts;
  }

  LanePlan PlanOf(std::vector<LaneCuts> cuts) const {
    const LaneRows rows = RowsOfCuts(shapes_, cuts, tile_);
    return {std::move(cuts), rows, TimesOfLanes(objective_, costs_, rows), rows == least_};
  }

  const SplitObjective objective_;
  const LaneCosts& costs_;
  const absl::Span<const LaneShape> shapes_;
  const int64_t tile_;
  const bool x_pays_;  // streamed X shortens what travels
  const HostPath path_;
  const LaneRows least_;
};

}  // namespace

absl::StatusOr<LanePlan> SolveLanes(SplitObjective objective, const LaneCosts& costs,
                                    absl::Span<const LaneShape> shapes, int64_t tile) {
  RUNAHEAD_RETURN_IF_ERROR(CheckLaneCosts(costs));
  RUNAHEAD_RETURN_IF_ERROR(CheckLaneShapes(shapes, tile));
  return SplitSearch(objective, costs, shapes, tile).Solve();
}

absl::StatusOr<LanePlan> SmallestSplit(SplitObjective objective, const LaneCosts& costs,
                                       absl::Span<const LaneShape> shapes, int64_t tile) {
  RUNAHEAD_RETURN_IF_ERROR(CheckLaneCosts(costs));
  RUNAHEAD_RETURN_IF_ERROR(CheckLaneShapes(shapes, tile));
  return SplitSearch(objective, costs, shapes, tile).Least();
}

}  // namespace runahead
