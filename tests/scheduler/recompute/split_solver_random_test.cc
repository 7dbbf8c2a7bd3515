// The solver against all cuts that there are, at a small scale: tiles of 2, pieces of 4 or 8.
#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "scheduler/recompute/host_path.h"
#include "scheduler/recompute/split_solver.h"
#include "tests/scheduler/recompute/lane_brute_force.h"

namespace runahead {
namespace {

constexpr int64_t kSmallTile = 2;
constexpr int64_t kSmallPiece = 4;

struct RandomCase {
  SplitObjective objective = SplitObjective::kStep;
  LaneCosts costs;
  std::vector<LaneShape> shapes;
};

class RandomCases {
 public:
  explicit RandomCases(int seed) : random_(seed) {}

  // `whole`: X is stored for all or for nothing and resident in whole pieces, and pieces have one size.
  RandomCase Draw(bool whole) {
    RandomCase drawn;
    drawn.objective = static_cast<SplitObjective>(std::min<int64_t>(3, Int(0, 5)));  // mostly the step
    LaneCosts& costs = drawn.costs;
    costs.link_bytes_per_s = Real(0.5, 4);
    costs.kv_bytes = 2;
    costs.x_bytes = Real(0.2, 3);
    costs.recompute_s = Int(0, 4) == 0 ? 0 : Real(0, 3);
    costs.attend_s = Int(0, 1) == 0 ? 0 : Real(0, 0.3);
    costs.project_s = Int(0, 1) == 0 ? 0 : Real(0, 10);
    costs.signal_s = Int(0, 1) == 0 ? 0 : Real(0, 10);
    if (Int(0, 5) != 0) costs.host_attend_s = Real(0, 3);
    if (Int(0, 1) == 0) costs.host_bytes_per_s = Real(0.4, 8);
    if (Int(0, 3) == 0) costs.other_link_bytes = Real(0, 20);
    const int64_t sequences = Int(0, 3) == 0 ? 3 : Int(1, 2);
    for (int64_t i = 0; i < sequences; ++i) drawn.shapes.push_back(whole ? WholeShape() : AnyShape());
    return drawn;
  }

 private:
  int64_t Int(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random_); }
  double Real(double least, double most) { return std::uniform_real_distribution<double>(least, most)(random_); }

  LaneShape WholeShape() {
    LaneShape shape{.length = Int(1, 44), .piece_tokens = kSmallPiece};
    if (Int(0, 4) != 0) shape.resident_from = Int(Int(0, shape.length), shape.length);
    if (Int(0, 4) != 0) {
      shape.x_stored = shape.length;
      shape.l_min = Int(0, 2) == 0 ? Int(0, shape.length) : 0;
      shape.x_resident = Int(0, 2) == 0 ? RoundDownTo(kSmallPiece, Int(0, shape.length)) : 0;
    }
    return shape;
  }

  LaneShape AnyShape() {
    LaneShape shape{.length = Int(1, 44), .piece_tokens = Int(0, 3) == 0 ? 2 * kSmallPiece : kSmallPiece};
    if (Int(0, 4) != 0) shape.resident_from = Int(Int(0, shape.length), shape.length + 3);
    shape.x_stored = Int(0, shape.length);
    shape.l_min = Int(0, 2) == 0 ? Int(0, shape.x_stored) : 0;
    shape.x_resident = Int(0, 1) == 0 ? Int(0, shape.x_stored) : 0;
    return shape;
  }

  std::mt19937 random_;
};

// The cuts are in order and allowed, and rows and times are theirs.
void ExpectSound(const RandomCase& of, const LanePlan& plan) {
  testing::BruteSums sums;
  for (size_t i = 0; i < of.shapes.size(); ++i) {
    const LaneShape& shape = of.shapes[i];
    const LaneCuts& cut = plan.cuts[i];
    EXPECT_LE(cut.recomputed_end, std::min(shape.x_stored, cut.streamed_end));
    EXPECT_GE(cut.recomputed_end, std::min(shape.l_min, cut.host_end));
    EXPECT_LE(cut.streamed_end, cut.host_end);
    for (const int64_t end : {cut.streamed_end, cut.host_end}) {
      EXPECT_TRUE(end % shape.piece_tokens == 0 || end == shape.length) << end;
    }
    EXPECT_TRUE(cut.host_end == shape.length || cut.host_end >= shape.resident_from);
    EXPECT_TRUE(cut.host_end < shape.length || cut.streamed_end == cut.host_end) << "the newest piece on the host";
    sums.x_rows += static_cast<double>(
        cut.recomputed_end <= shape.x_resident ? 0 : cut.recomputed_end - shape.x_resident / kSmallTile * kSmallTile);
    sums.kv_rows += static_cast<double>(cut.streamed_end - cut.recomputed_end);
    sums.computed += static_cast<double>((cut.recomputed_end + kSmallTile - 1) / kSmallTile * kSmallTile);
    sums.host += static_cast<double>(cut.host_end - cut.streamed_end);
    sums.on_device += static_cast<double>(shape.length - (cut.host_end - cut.streamed_end));
  }
  const double layer_s = testing::BruteLayer(of.objective, of.costs, sums);
  EXPECT_NEAR(plan.times.layer_s, layer_s, 1e-9 * layer_s);
}

// Seconds of a position, in the lane that takes longest for it.
double PositionSeconds(const LaneCosts& costs) {
  const double speed = std::min(costs.link_bytes_per_s, costs.host_bytes_per_s);
  return std::max(std::max(costs.kv_bytes, costs.x_bytes) / speed, costs.recompute_s);
}

// Parts of a tile come behind all whole tiles, be these resident or not: where several sequences end in parts, another
// order may be better by less than a tile.
TEST(SplitSolverRandom, EqualsAllCutsTriedWhereXIsWhole) {
  RandomCases cases(1);
  int with_host = 0, with_l = 0, with_part = 0, unequal = 0;
  for (int i = 0; i < 10000 && !::testing::Test::HasFailure(); ++i) {
    const RandomCase drawn = cases.Draw(true);
    const LanePlan plan = SolveLanes(drawn.objective, drawn.costs, drawn.shapes, kSmallTile).value();
    SCOPED_TRACE(absl::StrCat("case ", i, ", ", drawn.shapes.size(), " sequences"));
    ExpectSound(drawn, plan);
    const double best = testing::BruteForce(drawn.objective, drawn.costs, drawn.shapes, kSmallTile);
    EXPECT_GE(plan.times.layer_s, best * (1 - 1e-9));
    const bool parts = std::any_of(drawn.shapes.begin(), drawn.shapes.end(),
                                   [](const LaneShape& shape) { return shape.x_stored % kSmallTile != 0; });
    EXPECT_LE(plan.times.layer_s, best * (1 + 1e-9) + (parts ? kSmallTile * PositionSeconds(drawn.costs) : 0));
    unequal += plan.times.layer_s > best * (1 + 1e-9);
    with_host += plan.rows.host > 0;
    with_l += plan.rows.recomputed > 0;
    with_part += plan.rows.computed > plan.rows.recomputed;
  }
  EXPECT_LE(unequal, 20) << unequal;
  EXPECT_GT(with_host, 1000) << with_host;  // the cases are worth something
  EXPECT_GT(with_l, 3000);
  EXPECT_GT(with_part, 500);
}

// X of any prefix, residency at any position, pieces of two sizes: at most about a piece from the best.
TEST(SplitSolverRandom, IsWithinAPieceOfTheBestForAnyPrefixOfX) {
  RandomCases cases(2);
  int equal = 0;
  constexpr int kCases = 10000;
  for (int i = 0; i < kCases && !::testing::Test::HasFailure(); ++i) {
    const RandomCase drawn = cases.Draw(false);
    const LanePlan plan = SolveLanes(drawn.objective, drawn.costs, drawn.shapes, kSmallTile).value();
    SCOPED_TRACE(absl::StrCat("case ", i, ", ", drawn.shapes.size(), " sequences"));
    ExpectSound(drawn, plan);
    const double best = testing::BruteForce(drawn.objective, drawn.costs, drawn.shapes, kSmallTile);
    EXPECT_GE(plan.times.layer_s, best * (1 - 1e-9));
    EXPECT_LE(plan.times.layer_s, best + 2 * kSmallPiece * PositionSeconds(drawn.costs));
    equal += plan.times.layer_s < best * (1 + 1e-9);
  }
  EXPECT_GT(equal, kCases * 97 / 100) << equal;
}

TEST(SplitSolverRandom, IsExactForOneSequenceWhateverXIsStored) {
  RandomCases cases(3);
  for (int i = 0; i < 10000 && !::testing::Test::HasFailure(); ++i) {
    RandomCase drawn = cases.Draw(false);
    drawn.shapes.resize(1);
    SCOPED_TRACE(absl::StrCat("case ", i));
    const LanePlan plan = SolveLanes(drawn.objective, drawn.costs, drawn.shapes, kSmallTile).value();
    const double best = testing::BruteForce(drawn.objective, drawn.costs, drawn.shapes, kSmallTile);
    EXPECT_NEAR(plan.times.layer_s, best, 1e-9 * best);
  }
}

// Ragged batches as they come: every host lane in the path's order, with every l.
TEST(SplitSolverRandom, NoOtherHostLaneInThePathsOrderIsBetter) {
  std::mt19937 random(9);
  const auto real = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  for (int i = 0; i < 100 && !HasFailure(); ++i) {
    LaneCosts costs;
    costs.link_bytes_per_s = real(10e9, 60e9);
    costs.x_bytes = 8192;
    costs.kv_bytes = random() % 2 == 0 ? 16384 : 4096;
    costs.recompute_s = real(0, 1e-6);
    costs.project_s = real(0, 5e-4);
    costs.attend_s = costs.kv_bytes / 3e12;
    costs.host_attend_s = costs.kv_bytes / real(20e9, 300e9);
    if (random() % 2 == 0) costs.host_bytes_per_s = real(60e9, 400e9);
    std::vector<LaneShape> shapes(1 + random() % 12);
    LaneRows all;
    for (LaneShape& shape : shapes) {
      shape.length = 1000 + static_cast<int64_t>(random() % 30000);
      shape.piece_tokens = shape.length > 16384 ? 512 : 256;
      shape.x_stored = random() % 3 == 0 ? static_cast<int64_t>(random() % shape.length) : shape.length;
      shape.resident_from = shape.length - static_cast<int64_t>(random() % 1000);
      shape.x_resident = std::min<int64_t>(shape.x_stored, random() % 2 == 0 ? 256 : 0);
      all.streamed += shape.WindowBegin();
      all.resident += shape.length - shape.WindowBegin();
    }
    const LanePlan plan = *SolveLanes(SplitObjective::kStep, costs, shapes);
    const HostPath path(shapes, kSplitTile, true);
    for (int64_t pieces = 0; pieces <= path.pieces(); ++pieces) {
      const SplitRoom room = path.At(pieces);
      LaneRows rows = all;
      rows.host = room.host_rows;
      for (int64_t tiles = 0; tiles <= room.tiles; tiles += tiles < room.cheap_tiles ? 1 : 7) {
        rows.recomputed = rows.computed = tiles * kSplitTile;
        rows.x_streamed = std::max<int64_t>(0, tiles - room.cheap_tiles) * kSplitTile;
        rows.streamed = all.streamed - rows.host - rows.recomputed;
        const double layer_s = TimesOfLanes(SplitObjective::kStep, costs, rows).layer_s;
        if (layer_s < plan.times.layer_s * (1 - 1e-9)) {
          ADD_FAILURE() << "case " << i << ": " << pieces << " pieces, " << tiles << " tiles: " << layer_s << " < "
                        << plan.times.layer_s;
          return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace runahead
