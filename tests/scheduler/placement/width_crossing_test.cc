// The best width of a chain depends on the prompt's length and on the links together, as in the paper's tables. The
// planner, which knows the times of five lengths only, against a simulation of every width at the very length.
#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/partition/chain_simulator.h"
#include "scheduler/partition/partition_table.h"
#include "scheduler/partition/simulated_search.h"
#include "scheduler/placement/chain_plan.h"
#include "tests/testing/paper_tables.h"

namespace runahead {
namespace {

constexpr int kWidths = 8;
constexpr int64_t kSearched[] = {1024, 2048, 4096, 8192, 16384};  // lengths of the table
constexpr std::array<int64_t, 5> kLengths = {1536, 2560, 3584, 6144, 12288};
constexpr std::array<double, 6> kGigabytes = {1.5, 2, 2.5, 5, 10, 20};  // a second, of every link

CostModel ModelOver(double gigabytes_per_s) {
  CostModel model = testing::PaperTspFit().model;
  model.links[0].bytes_per_s = gigabytes_per_s * 1e9;
  return model;
}

double Seconds(const CostModel& model, absl::Span<const int64_t> parts) {
  return SimulateChain(model, SimulatedSchedule::kKvr, parts)->ttft_s;
}

// As `plan search` would fill it, with simulated times.
PartitionTable TableOf(const CostModel& model) {
  std::vector<PartitionEntry> entries;
  for (int width = 1; width <= kWidths; ++width) {
    for (const int64_t tokens : kSearched) {
      const SearchResult found = SearchSimulated(model, tokens, width, false).value();
      PartitionEntry entry{width, tokens, {}, found.best.seconds};
      for (const int64_t part : found.parts) {
        entry.fractions.push_back(static_cast<double>(part) / static_cast<double>(tokens));
      }
      entries.push_back(entry);
    }
  }
  return PartitionTable::Create(entries).value();
}

// One length over one bandwidth.
struct Pair {
  std::array<double, kWidths + 1> seconds = {};  // of every width, its parts searched for this very pair
  int best = 1;
  int chosen = 1;       // by the planner, for an idle line
  double chosen_s = 0;  // what its parts take
};

Pair PairOf(const CostModel& model, const PartitionTable& table, int64_t tokens) {
  Pair pair;
  for (int width = 1; width <= kWidths; ++width) {
    pair.seconds[width] = SearchSimulated(model, tokens, width, false)->best.seconds;
    if (pair.seconds[width] < pair.seconds[pair.best]) pair.best = width;
  }
  ChainRequest request;
  request.tokens = tokens;
  const ChainPlan plan = PlanChain(request, table, std::vector<WorkerView>(kWidths, WorkerView{true})).value();
  pair.chosen = static_cast<int>(plan.parts.size());
  pair.chosen_s = Seconds(model, plan.parts);
  return pair;
}

using Pairs = std::array<std::array<Pair, kLengths.size()>, kGigabytes.size()>;  // [bandwidth][length]

const Pairs& AllPairs() {
  static const Pairs pairs = [] {
    Pairs all;
    for (size_t b = 0; b < kGigabytes.size(); ++b) {
      const CostModel model = ModelOver(kGigabytes[b]);
      const PartitionTable table = TableOf(model);
      std::printf("%4.1f GB/s:", kGigabytes[b]);
      for (size_t l = 0; l < kLengths.size(); ++l) {
        const Pair& pair = all[b][l] = PairOf(model, table, kLengths[l]);
        std::printf("  %5d tokens: %d, best %d (%+.1f%%, with its parts %+.1f%%)", static_cast<int>(kLengths[l]),
                    pair.chosen, pair.best, 100 * (pair.seconds[pair.chosen] / pair.seconds[pair.best] - 1),
                    100 * (pair.chosen_s / pair.seconds[pair.best] - 1));
      }
      std::printf("\n");
    }
    return all;
  }();
  return pairs;
}

// By how much the worst of `pairs` is slower than it could be if all of them took the width that is best for them.
double LossOfOneWidth(const std::vector<const Pair*>& pairs) {
  double least = 1e9;
  for (int width = 1; width <= kWidths; ++width) {
    double worst = 0;
    for (const Pair* pair : pairs) worst = std::max(worst, pair->seconds[width] / pair->seconds[pair->best] - 1);
    least = std::min(least, worst);
  }
  return least;
}

std::vector<const Pair*> OfBandwidth(size_t b) {
  std::vector<const Pair*> pairs;
  for (const Pair& pair : AllPairs()[b]) pairs.push_back(&pair);
  return pairs;
}
std::vector<const Pair*> OfLength(size_t l) {
  std::vector<const Pair*> pairs;
  for (const auto& row : AllPairs()) pairs.push_back(&row[l]);
  return pairs;
}

// The most that any pair loses by the planner's width, each width with the parts that are best for it.
double PlannersLoss() {
  double worst = 0;
  for (const auto& row : AllPairs()) {
    for (const Pair& pair : row) worst = std::max(worst, pair.seconds[pair.chosen] / pair.seconds[pair.best] - 1);
  }
  return worst;
}

// The best width goes from 1 to 8 over these pairs, and nearly each has a neighbour, one step of length or bandwidth
// away, for which another width is best.
TEST(WidthCrossing, LiesBetweenThesePairs) {
  const Pairs& all = AllPairs();
  const auto differs = [&](size_t b, size_t l, size_t other_b, size_t other_l) {
    return other_b < all.size() && other_l < all[b].size() && all[b][l].best != all[other_b][other_l].best;
  };
  int around = 0;
  for (size_t b = 0; b < all.size(); ++b) {
    for (size_t l = 0; l < all[b].size(); ++l) {
      around +=
          differs(b, l, b - 1, l) || differs(b, l, b + 1, l) || differs(b, l, b, l - 1) || differs(b, l, b, l + 1);
    }
  }
  EXPECT_GE(around, 24) << "of 30";
  EXPECT_EQ(all.front().front().best, 1);
  EXPECT_EQ(all.back().back().best, kWidths);
}

// Neither decides alone: whatever width one takes for a length, over some link it is much slower than another, and
// whatever one takes for a link, for some length it is. (Less so at the ends: the longest prompt is worth the whole
// line over all links but the slowest, and over the slowest all but that prompt want one worker.)
TEST(WidthCrossing, IsDecidedByLengthAndBandwidthTogether) {
  std::printf("one width for all costs the worst pair of");
  for (size_t l = 0; l < kLengths.size(); ++l) {
    const double loss = LossOfOneWidth(OfLength(l));
    std::printf("  %d tokens: %.1f%%", static_cast<int>(kLengths[l]), 100 * loss);
    EXPECT_GT(loss, l + 1 < kLengths.size() ? 0.25 : 0.04) << kLengths[l];
  }
  for (size_t b = 0; b < kGigabytes.size(); ++b) {
    const double loss = LossOfOneWidth(OfBandwidth(b));
    std::printf("  %.1f GB/s: %.1f%%", kGigabytes[b], 100 * loss);
    EXPECT_GT(loss, b > 0 ? 0.08 : 0.03) << kGigabytes[b];
  }
  std::printf("\n");
}

// The planner has the times of other lengths, and interpolates. What it takes costs no pair more than 4%, where one
// width for a length costs 25% and more. (Its parts, interpolated too, may cost more than its width: what is printed.)
TEST(WidthCrossing, ThePlannersWidthIsTheBestOrNear) {
  int best = 0;
  for (const auto& row : AllPairs()) {
    for (const Pair& pair : row) best += pair.seconds[pair.chosen] <= 1.01 * pair.seconds[pair.best];
  }
  EXPECT_GE(best, 24) << "of 30 within 1%";
  EXPECT_LT(PlannersLoss(), 0.04);
}

}  // namespace
}  // namespace runahead
