#include "scheduler/partition/partition_search.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/partition/partition_moves.h"

namespace runahead {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Parts = std::vector<int64_t>;

// Seconds grow with the distance of every boundary from where it should be.
SearchObjective Towards(const std::vector<int64_t>& target, std::vector<Parts>* asked = nullptr) {
  return ObjectiveOf([target, asked](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
    if (asked != nullptr) asked->push_back(Parts(parts.begin(), parts.end()));
    return 1 + static_cast<double>(Distance(BoundsOf(parts), target));
  });
}

SearchOptions AsInThePaper(int64_t first, int64_t last) {
  SearchOptions options;
  options.first_stride = first;
  options.last_stride = last;
  options.thorough = false;
  return options;
}

// A seed in a basin of its own, better than even parts, beside which there is a deeper one.
TEST(PartitionSearch, LooksAroundEvenPartsBesideASeedWhereItIsAsked) {
  const SearchObjective basins = ObjectiveOf([](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
    const double boundary = static_cast<double>(parts[0]);
    return std::min(5 + std::abs(boundary - 104) / 100, std::abs(boundary - 700) / 20);
  });
  SearchOptions options;
  options.thorough = false;
  options.seeds = {{100, 924}};
  EXPECT_EQ(SearchPartition(1024, 2, basins, options)->parts, Parts({104, 920}));
  options.around_even = true;
  const SearchResult both = SearchPartition(1024, 2, basins, options).value();
  EXPECT_EQ(both.parts, Parts({700, 324}));
  ASSERT_GE(both.levels.size(), 3u);
  EXPECT_EQ(both.levels[0].centre, Parts({0, 100, 1024}));
  EXPECT_EQ(both.levels[0].stride, 32);
  EXPECT_EQ(both.levels[1].centre, Parts({0, 512, 1024}));
  EXPECT_EQ(both.levels[1].stride, 128) << "as without seeds";
  EXPECT_EQ(both.levels[2].stride, 64) << "it goes on from even parts";
  // The other way round: the seed's side is the better one, and its level is the one that the search goes on from.
  options.seeds = {{696, 328}};
  const SearchResult seeded = SearchPartition(1024, 2, basins, options).value();
  EXPECT_EQ(seeded.parts, Parts({700, 324}));
  EXPECT_EQ(seeded.levels[1].centre, Parts({0, 696, 1024}));
  EXPECT_EQ(seeded.levels[2].stride, 16);
}

// KV-Runahead (arXiv 2405.05329), the example of its hierarchical grid search: C = 96 on 3 processes, strides 8, 4 and
// 2, best [0, 28, 70, 96]. From the even split (32, 64): 72 is the nearest to 70 in steps of 8, then 28 in steps of 4,
// then 70 in steps of 2; as near as another point, the centre stays.
TEST(PartitionSearch, GoesThroughThePapersLevels) {
  const SearchResult result = SearchPartition(96, 3, Towards({0, 28, 70, 96}), AsInThePaper(0, 2)).value();
  ASSERT_THAT(result.levels, SizeIs(3));
  EXPECT_EQ(result.levels[0].stride, 8);
  EXPECT_THAT(result.levels[0].centre, ElementsAre(0, 32, 64, 96));
  EXPECT_THAT(result.levels[0].best, ElementsAre(0, 32, 72, 96));
  EXPECT_EQ(result.levels[1].stride, 4);
  EXPECT_THAT(result.levels[1].centre, ElementsAre(0, 32, 72, 96));
  EXPECT_THAT(result.levels[1].best, ElementsAre(0, 28, 72, 96));
  EXPECT_EQ(result.levels[2].stride, 2);
  EXPECT_THAT(result.levels[2].centre, ElementsAre(0, 28, 72, 96));
  EXPECT_THAT(result.levels[2].best, ElementsAre(0, 28, 70, 96));
  EXPECT_THAT(result.parts, ElementsAre(28, 42, 26));
  EXPECT_EQ(result.best.seconds, 1);
  EXPECT_EQ(result.end, SearchEnd::kFinished);
}

// Its cost of a level, T * 5^(p-1): no more than 25 here, and nothing is measured twice.
TEST(PartitionSearch, ALevelCostsFiveToThePowerOfTheBoundaries) {
  std::vector<Parts> asked;
  const SearchResult result = SearchPartition(96, 3, Towards({0, 28, 70, 96}, &asked), AsInThePaper(0, 2)).value();
  EXPECT_EQ(std::set<Parts>(asked.begin(), asked.end()).size(), asked.size());
  EXPECT_EQ(result.evaluations, static_cast<int64_t>(asked.size()));
  int64_t sum = 1;  // the start
  for (const SearchLevel& level : result.levels) {
    EXPECT_LE(level.evaluations, 25);
    sum += level.evaluations;
  }
  EXPECT_EQ(sum, result.evaluations);
}

// The paper's example for two: C = 16384, best boundary 9728, in about two evaluations a halving.
TEST(PartitionSearch, HalvesForTwoWorkers) {
  const SearchResult result = SearchPartition(16384, 2, Towards({0, 9728, 16384}), AsInThePaper(0, 1)).value();
  EXPECT_THAT(result.parts, ElementsAre(9728, 6656));
  EXPECT_LE(result.evaluations, 2 * 14 + 1);
}

TEST(PartitionSearch, FindsWhatIsFarFromEvenParts) {
  EXPECT_THAT(SearchPartition(1000, 4, Towards({0, 700, 900, 990, 1000}), {})->parts, ElementsAre(700, 200, 90, 10));
  EXPECT_THAT(SearchPartition(1000, 2, Towards({0, 1, 1000}), {})->parts, ElementsAre(1, 999));
  EXPECT_THAT(SearchPartition(9, 9, Towards({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), {})->parts, Each(1));
}

TEST(PartitionSearch, GoesUpToSixteenWorkers) {
  for (int width : {7, 8, 12, 16}) {
    // Seconds of the slowest worker when worker i takes i + 1 for a token: the best is proportional to 1 / (i + 1).
    const SearchObjective slowest = ObjectiveOf([](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
      double most = 0;
      for (size_t i = 0; i < parts.size(); ++i) most = std::max(most, static_cast<double>(parts[i]) * (i + 1.0));
      return most;
    });
    double shares = 0;
    for (int i = 0; i < width; ++i) shares += 1.0 / (i + 1);
    const SearchResult result = SearchPartition(16384, width, slowest, {}).value();
    EXPECT_LT(result.best.seconds, 1.01 * 16384 / shares) << width;
  }
}

TEST(PartitionSearch, KeepsEvenPartsWhereNothingIsGained) {
  const SearchObjective flat = ObjectiveOf([](absl::Span<const int64_t>) -> absl::StatusOr<double> { return 1.0; });
  EXPECT_THAT(SearchPartition(1000, 4, flat, {})->parts, Each(250));
  EXPECT_THAT(SearchPartition(1000, 8, flat, {})->parts, Each(125));
  EXPECT_THAT(SearchPartition(1000, 1, flat, {})->parts, ElementsAre(1000));
}

TEST(PartitionSearch, ASeedNearTheBestSavesEvaluations) {
  const std::vector<int64_t> target = {0, 3500, 6000, 8200, 10000};
  SearchOptions options = AsInThePaper(0, 16);
  const SearchResult cold = SearchPartition(10000, 4, Towards(target), options).value();
  options.seeds = {{3480, 2520, 2210, 1790}};
  const SearchResult warm = SearchPartition(10000, 4, Towards(target), options).value();
  EXPECT_LE(warm.best.seconds, cold.best.seconds);
  EXPECT_LE(3 * warm.evaluations, 2 * cold.evaluations);
  EXPECT_EQ(warm.levels[0].centre, BoundsOf(options.seeds[0]));
}

// The paper's interpolated entry: 10k on 4 GPUs between the entries at 8k and 12k.
TEST(PartitionSearch, SeedsAreInterpolatedBetweenSearchedLengths) {
  const std::vector<PartitionEntry> searched = {
      {.width = 4, .tokens = 8192, .fractions = {0.340, 0.250, 0.215, 0.195}},
      {.width = 4, .tokens = 12288, .fractions = {0.360, 0.260, 0.205, 0.175}},
      {.width = 2, .tokens = 8192, .fractions = {0.6, 0.4}}};
  EXPECT_THAT(InterpolateSeed(10000, 4, searched).value(), ElementsAre(3488, 2544, 2106, 1862));
  EXPECT_THAT(InterpolateSeed(10000, 2, searched).value(), ElementsAre(6000, 4000));
  EXPECT_THAT(InterpolateSeed(10000, 3, searched).value(), IsEmpty());
}

TEST(PartitionSearch, NeverEvaluatesMoreThanAllowed) {
  for (int64_t bound : {1, 2, 7, 40}) {
    SearchOptions options;
    options.max_evaluations = bound;
    std::vector<Parts> asked;
    const SearchResult result = SearchPartition(1000, 4, Towards({0, 400, 650, 830, 1000}, &asked), options).value();
    EXPECT_EQ(static_cast<int64_t>(asked.size()), bound);
    EXPECT_EQ(result.evaluations, bound);
    EXPECT_EQ(result.end, SearchEnd::kEvaluations);
  }
}

TEST(PartitionSearch, StopsWhenTheObjectiveSaysSoAndKeepsTheBest) {
  int64_t left = 30;
  const SearchObjective budgeted = [&](absl::Span<const Parts> partitions) -> absl::StatusOr<SearchAnswer> {
    SearchAnswer answer;
    for (const Parts& parts : partitions) {
      if (left-- == 0) {
        answer.stop = true;
        break;
      }
      answer.samples.push_back({1 + std::abs(static_cast<double>(parts[0]) - 400), 0});
    }
    return answer;
  };
  const SearchResult result = SearchPartition(900, 3, budgeted, AsInThePaper(0, 1)).value();
  EXPECT_EQ(result.end, SearchEnd::kStopped);
  EXPECT_EQ(result.evaluations, 30);
  EXPECT_LT(std::abs(result.parts[0] - 400), 100);
}

TEST(PartitionSearch, StoppedBeforeAnythingIsAnError) {
  const SearchObjective never = [](absl::Span<const Parts>) -> absl::StatusOr<SearchAnswer> {
    return SearchAnswer{{}, true};
  };
  EXPECT_EQ(SearchPartition(900, 3, never, {}).status().code(), absl::StatusCode::kDeadlineExceeded);
}

// Times with a scatter of 2 ms: steps of 64 tokens still show, at 10 us a token, finer ones do not.
TEST(PartitionSearch, StopsRefiningInTheNoise) {
  std::mt19937 random(1);
  const SearchObjective noisy = [&](absl::Span<const Parts> partitions) -> absl::StatusOr<SearchAnswer> {
    SearchAnswer answer;
    for (const Parts& parts : partitions) {
      const double noise = std::uniform_real_distribution<double>(-0.001, 0.001)(random);
      answer.samples.push_back({1 + 1e-5 * std::abs(static_cast<double>(parts[0]) - 9728) + noise, 0.001});
    }
    return answer;
  };
  const SearchResult result = SearchPartition(16384, 2, noisy, AsInThePaper(0, 1)).value();
  EXPECT_EQ(result.end, SearchEnd::kNoise);
  EXPECT_LE(result.levels.back().stride, 512);
  EXPECT_GE(result.levels.back().stride, 32);
  EXPECT_NEAR(static_cast<double>(result.parts[0]), 9728, 400);
}

TEST(PartitionSearch, HandsAWholeLevelToTheObjectiveAtOnce) {
  std::vector<size_t> sizes;
  const SearchObjective counting = [&](absl::Span<const Parts> partitions) -> absl::StatusOr<SearchAnswer> {
    sizes.push_back(partitions.size());
    return SearchAnswer{std::vector<SearchSample>(partitions.size(), {1, 0}), false};
  };
  ASSERT_TRUE(SearchPartition(96, 3, counting, AsInThePaper(8, 8)).ok());
  EXPECT_THAT(sizes, ElementsAre(1, 23));  // 25, but for the centre and (48, 48), which is no partition
}

TEST(PartitionSearch, RefusesBadInput) {
  const auto message = [](int64_t tokens, int width, SearchOptions options) {
    return std::string(SearchPartition(tokens, width, Towards({0, 10}), options).status().message());
  };
  EXPECT_THAT(message(10, 17, {}), HasSubstr("width: 17 is more than 16"));
  EXPECT_THAT(message(10, 0, {}), HasSubstr("width: 0"));
  EXPECT_THAT(message(3, 4, {}), HasSubstr("width: 4"));
  SearchOptions options;
  options.seeds = {{5, 4}};
  EXPECT_THAT(message(10, 2, options), HasSubstr("2 parts of at least 1 that add up to 10"));
  EXPECT_THAT(message(10, 2, AsInThePaper(-1, 1)), HasSubstr("first_stride"));
  const auto failing = [](absl::Span<const int64_t>) -> absl::StatusOr<double> {
    return absl::UnavailableError("the chain is gone");
  };
  EXPECT_EQ(SearchPartition(10, 2, ObjectiveOf(failing), {}).status().message(), "the chain is gone");
  const SearchObjective short_answer = [](absl::Span<const Parts>) -> absl::StatusOr<SearchAnswer> {
    return SearchAnswer{};
  };
  EXPECT_EQ(SearchPartition(10, 2, short_answer, {}).status().code(), absl::StatusCode::kInternal);
}

TEST(PartitionSearch, FirstStrideIsAQuarterOfAnEvenPart) {
  EXPECT_EQ(FirstStride(96, 3), 8);
  EXPECT_EQ(FirstStride(16384, 4), 1024);
  EXPECT_EQ(FirstStride(10000, 2), 1024);
  EXPECT_EQ(FirstStride(5, 4), 1);
}

}  // namespace
}  // namespace runahead
