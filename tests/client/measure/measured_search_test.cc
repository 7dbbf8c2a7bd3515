#include "client/measure/measured_search.h"

#include <cmath>
#include <map>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "client/measure/median.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/partition/simulated_search.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/paper_tables.h"

namespace runahead {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Partitions = std::vector<std::vector<int64_t>>;

std::string Name(absl::Span<const int64_t> parts) {
  return absl::StrJoin(parts, "+");
}

// A chain whose times the test writes; a run takes a second on the fake clock, whatever time it is said to need.
class MeasuredSearchTest : public ::testing::Test {
 protected:
  // Times of a partition, run by run; the last one repeats.
  void Script(const std::string& name, std::vector<double> times) { scripts_[name] = std::move(times); }

  absl::StatusOr<double> Run(absl::Span<const int64_t> parts) {
    const std::string name = Name(parts);
    ran_.push_back(name);
    clock_.Advance(absl::Seconds(1));
    if (static_cast<int>(ran_.size()) == fails_at_) return absl::CancelledError("interrupted");
    if (model_) return model_(parts);
    const std::vector<double>& script = scripts_.at(name);
    const size_t index = next_[name]++;
    return script[std::min(index, script.size() - 1)];
  }

  static std::vector<double> Seconds(const SearchAnswer& answer) {
    std::vector<double> seconds;
    for (const SearchSample& sample : answer.samples) seconds.push_back(sample.seconds);
    return seconds;
  }

  testing::FakeClock clock_;
  std::map<std::string, std::vector<double>> scripts_;
  std::map<std::string, size_t> next_;
  std::function<double(absl::Span<const int64_t>)> model_;
  std::vector<std::string> ran_;
  int fails_at_ = 0;
  const ChainTimer timer_ = [this](absl::Span<const int64_t> parts) { return Run(parts); };
};

TEST_F(MeasuredSearchTest, RepetitionsAreInterleavedAfterOneWarmUp) {
  // The first time of 5+5 is the warm-up's: counted, it would be the median's neighbour and the range's end.
  Script("5+5", {90, 3, 1, 8});
  Script("6+4", {2, 2.5, 2.25});
  MeasuredObjective objective(timer_, clock_, {.repeats = 3, .budget = absl::Hours(1)});
  const auto answer = objective(Partitions{{5, 5}, {6, 4}});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(ran_, ElementsAre("5+5", "5+5", "6+4", "5+5", "6+4", "5+5", "6+4"));
  EXPECT_FALSE(answer->stop);
  // Ratios in turn: 2/3, 2.5, 2.25/8.
  ASSERT_EQ(answer->samples.size(), 2u);
  EXPECT_EQ(answer->samples[0].seconds, 3);
  EXPECT_NEAR(answer->samples[0].noise_s, MedianErrorOf({3, 1, 8}), 1e-12);
  EXPECT_DOUBLE_EQ(answer->samples[1].seconds, 2);
  EXPECT_NEAR(answer->samples[1].noise_s, 3 * MedianErrorOf({2.0 / 3, 2.5, 2.25 / 8}), 1e-12);
  EXPECT_EQ(objective.runs(), 7);
}

TEST_F(MeasuredSearchTest, WhatDriftsBetweenLevelsFallsOnTheReferenceToo) {
  Script("5+5", {90, 4, 4, 8, 8});
  Script("7+3", {6});
  MeasuredObjective objective(timer_, clock_, {.repeats = 2, .budget = absl::Hours(1)});
  ASSERT_THAT(Seconds(*objective(Partitions{{5, 5}})), ElementsAre(4));
  ran_.clear();
  // The machine is half as fast by now: 7+3 is still faster than 5+5.
  EXPECT_THAT(Seconds(*objective(Partitions{{7, 3}})), ElementsAre(3));
  EXPECT_THAT(ran_, ElementsAre("5+5", "7+3", "5+5", "7+3"));
  EXPECT_THAT(objective.times({5, 5}), ElementsAre(4, 4, 8, 8));
}

TEST_F(MeasuredSearchTest, TheSlowerHalfIsLeftOutAndNeverWins) {
  Partitions partitions;
  for (int64_t i = 1; i <= 10; ++i) partitions.push_back({i, 20 - i});
  // 9+11 is lucky in its first run only; 10+10 has the slowest first run and would be the fastest of all later.
  for (int64_t i = 1; i <= 10; ++i) Script(Name(partitions[i - 1]), {10.0 + static_cast<double>(i)});
  Script("1+19", {11});
  Script("4+16", {14, 30});
  Script("9+11", {10.5, 40});
  Script("10+10", {99, 1});
  MeasuredObjective objective(timer_, clock_, {.repeats = 3, .budget = absl::Hours(1)});
  const auto answer = objective(partitions);
  ASSERT_TRUE(answer.ok()) << answer.status();
  // Round 1: all, after 1+19 as warm-up; round 2: 1+19 to 4+16 and 9+11; round 3: the four fastest of these.
  EXPECT_EQ(objective.runs(), 1 + 10 + 5 + 4);
  const std::vector<std::string> last(ran_.end() - 4, ran_.end());
  EXPECT_THAT(last, ElementsAre("1+19", "2+18", "3+17", "4+16"));
  const std::vector<double> seconds = Seconds(*answer);
  ASSERT_EQ(seconds.size(), 10u);
  EXPECT_THAT(std::vector<double>(seconds.begin(), seconds.begin() + 4),
              ElementsAre(11, DoubleEq(12), DoubleEq(13), DoubleEq(30)));
  for (size_t i = 4; i < 10; ++i) EXPECT_GE(seconds[i], seconds[3]) << i;
}

TEST_F(MeasuredSearchTest, TheBudgetLeavesOutALevelThatItCutsOffEarly) {
  model_ = [](absl::Span<const int64_t>) { return 1; };
  const Partitions first = {{5, 5}}, level = {{4, 6}, {6, 4}};
  // A warm-up and five runs, then two rounds of three and two thirds of a third: too few.
  MeasuredObjective early(timer_, clock_, {.repeats = 5, .budget = absl::Seconds(6 + 8)});
  ASSERT_FALSE(early(first)->stop);
  auto answer = early(level);
  EXPECT_TRUE(answer->stop);
  EXPECT_THAT(answer->samples, IsEmpty());
  EXPECT_EQ(early.runs(), 14);
  EXPECT_EQ(early.took(), absl::Seconds(14));

  MeasuredObjective late(timer_, clock_, {.repeats = 5, .budget = absl::Seconds(6 + 10)});
  ASSERT_FALSE(late(first)->stop);
  answer = late(level);
  EXPECT_TRUE(answer->stop);
  EXPECT_THAT(Seconds(*answer), ElementsAre(1, 1));
  EXPECT_EQ(late.runs(), 16);
}

TEST_F(MeasuredSearchTest, EvenTheSmallestBudgetMeasuresTheFirstPartitionsOnce) {
  model_ = [](absl::Span<const int64_t>) { return 1; };
  MeasuredObjective objective(timer_, clock_, {.repeats = 5, .budget = absl::Milliseconds(1)});
  const auto answer = objective(Partitions{{5, 5}, {6, 4}});
  EXPECT_TRUE(answer->stop);
  EXPECT_EQ(answer->samples.size(), 2u);
  EXPECT_THAT(ran_, ElementsAre("5+5", "5+5", "6+4"));
}

TEST_F(MeasuredSearchTest, AnErrorEndsItAtOnce) {
  model_ = [](absl::Span<const int64_t>) { return 1; };
  fails_at_ = 3;
  const auto found = MeasureEntry(1024, 2, {}, timer_, clock_, {});
  EXPECT_TRUE(absl::IsCancelled(found.status())) << found.status();
  EXPECT_EQ(ran_.size(), 3u);
}

TEST_F(MeasuredSearchTest, OneWorkerIsOnlyTimed) {
  Script("1000", {9, 2, 4, 3});
  const auto found = MeasureEntry(1000, 1, {}, timer_, clock_, {.repeats = 3, .budget = absl::Hours(1)});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(found->parts, ElementsAre(1000));
  EXPECT_EQ(found->ttft_s, 3);
  EXPECT_EQ(found->spread_s, 1);
  EXPECT_EQ(found->predicted_s, std::nullopt);
  EXPECT_EQ(found->runs, 4);
  EXPECT_EQ(found->partitions, 1);
  EXPECT_EQ(found->end, SearchEnd::kFinished);
}

// The second worker waits for the first: the best cut is where both are done at once.
double TwoWorkers(absl::Span<const int64_t> parts) {
  const double first = static_cast<double>(parts[0]), second = static_cast<double>(parts[1]);
  return std::max(first, 1.5 * second + 0.0001 * second * first);
}

TEST_F(MeasuredSearchTest, TwoWorkersAreCutWithinTheLastStride) {
  model_ = TwoWorkers;
  const auto found = MeasureEntry(4096, 2, {}, timer_, clock_, {.repeats = 2, .budget = absl::Hours(1)});
  ASSERT_TRUE(found.ok()) << found.status();
  int64_t best = 1;
  for (int64_t i = 2; i < 4096; ++i) {
    if (TwoWorkers({i, 4096 - i}) < TwoWorkers({best, 4096 - best})) best = i;
  }
  EXPECT_NEAR(static_cast<double>(found->parts[0]), static_cast<double>(best), 4096 / 64);
  EXPECT_EQ(found->end, SearchEnd::kFinished);
  // Twice each; the even split also in every further level, and to warm up.
  std::map<std::string, int> runs;
  for (const std::string& name : ran_) ++runs[name];
  EXPECT_EQ(found->runs, static_cast<int64_t>(ran_.size()));
  EXPECT_EQ(found->partitions, static_cast<int64_t>(runs.size()));
  for (const auto& [name, count] : runs) EXPECT_TRUE(count == 2 || name == "2048+2048") << name << ": " << count;
  EXPECT_LE(found->partitions, 15);
}

TEST_F(MeasuredSearchTest, ANeighboursEntryIsWhereItStarts) {
  model_ = TwoWorkers;
  PartitionFileEntry neighbour;
  neighbour.width = 2;
  neighbour.tokens = 2048;
  neighbour.fractions = {0.625, 0.375};
  const auto found =
      MeasureEntry(4096, 2, {.searched = {&neighbour, 1}}, timer_, clock_, {.repeats = 1, .budget = absl::Hours(1)});
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_GE(ran_.size(), 3u);
  EXPECT_EQ(ran_[1], "2048+2048");
  EXPECT_EQ(ran_[2], "2560+1536");
  // Others' widths are none of it.
  neighbour.width = 3;
  neighbour.fractions = {0.5, 0.25, 0.25};
  ran_.clear();
  ASSERT_TRUE(MeasureEntry(4096, 2, {.searched = {&neighbour, 1}}, timer_, clock_, {.repeats = 1}).ok());
  EXPECT_EQ(ran_[1], "2048+2048");
  EXPECT_NE(ran_[2], "2560+1536");
}

TEST_F(MeasuredSearchTest, SingleWorkersTimesAreWhereItStarts) {
  model_ = TwoWorkers;
  std::vector<PartitionFileEntry> singles(3);
  for (size_t i = 0; i < singles.size(); ++i) {
    singles[i].width = 1;
    singles[i].tokens = int64_t{1024} << i;
    singles[i].fractions = {1};
    const double tokens = static_cast<double>(singles[i].tokens);
    singles[i].measured_ttft_s = 1e-3 * tokens + 1e-6 * tokens * tokens / 2;
  }
  const auto found =
      MeasureEntry(4096, 2, {.searched = singles}, timer_, clock_, {.repeats = 1, .budget = absl::Hours(1)});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(ran_[1], "2048+2048");
  // Both are done at once with a of n tokens where a + a^2 / 2000 = n - a + (n^2 - a^2) / 2000: 2672.
  const int64_t first = std::stoll(ran_[2]);
  EXPECT_NEAR(static_cast<double>(first), 2672, 40) << ran_[2];  // filling the chain takes a little
  ASSERT_TRUE(found->predicted_s.has_value());
  // Two of them tell nothing.
  ran_.clear();
  ASSERT_TRUE(
      MeasureEntry(4096, 2, {.searched = absl::MakeSpan(singles).first(2)}, timer_, clock_, {.repeats = 1}).ok());
  EXPECT_EQ(ran_[2], "2048+2048");
}

// Llama-7B as our workers compute it on four of the paper's GPUs, over links of 8 gigabits a second.
CostModel SlowLinks() {
  CostModel model = testing::PaperTspFit().model;
  model.causal_skip = true;
  model.attention_s_per_token_pair *= 2;  // half as many pairs: a single GPU takes what it took
  model.receive_ahead_layers = kRunaheadReceiveAhead;
  model.links[0].bytes_per_s = 1e9;
  return model;
}

// The best parts are far from even ones there: the first workers hardly take part. The grid around even parts ends in a
// corner, twice as slow at 4k.
TEST_F(MeasuredSearchTest, OverSlowLinksItStartsWhereTheProbesPointTo) {
  const CostModel truth = SlowLinks();
  model_ = [&truth](absl::Span<const int64_t> parts) { return PredictSeconds(truth, parts); };
  const MeasureOptions options{.repeats = 1, .budget = absl::Hours(10)};
  const auto probes = TimeProbes(ProbePartitions({}, 8192, 4), timer_, clock_, options);
  ASSERT_TRUE(probes.ok()) << probes.status();
  EXPECT_EQ(ran_.size(), 1u + 3 + 1 + 3) << "to warm up, single prompts, even parts, links";
  for (const int64_t tokens : {4096, 8192, 12288}) {
    const double best = SearchSimulated(truth, tokens, 4, true)->best.seconds;
    const auto found = MeasureEntry(tokens, 4, {.probes = *probes}, timer_, clock_, options);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_LT(found->ttft_s, 1.03 * best) << tokens;
    const auto without = MeasureEntry(tokens, 4, {}, timer_, clock_, options);
    EXPECT_GT(without->ttft_s, 1.2 * best) << tokens << ": the corner is gone, so this shows nothing";
  }
}

// A model that is wrong costs nothing but time: the search measures around even parts as well.
TEST_F(MeasuredSearchTest, AroundEvenPartsItMeasuresToo) {
  const CostModel truth = SlowLinks();
  model_ = [&truth](absl::Span<const int64_t> parts) { return PredictSeconds(truth, parts); };
  const MeasureOptions options{.repeats = 1, .budget = absl::Hours(10)};
  const auto probes = TimeProbes(ProbePartitions({}, 8192, 2), timer_, clock_, options);
  ASSERT_TRUE(probes.ok()) << probes.status();
  model_ = [](absl::Span<const int64_t> parts) {  // something else by now: 6000 + 2192 would be best
    return 1 + std::abs(static_cast<double>(parts[0] - 6000)) / 8192;
  };
  const auto found = MeasureEntry(8192, 2, {.probes = *probes}, timer_, clock_, options);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_NEAR(static_cast<double>(found->parts[0]), 6000, 200);
}

// A prompt that one worker has no memory for tells nothing, and is no failure.
TEST_F(MeasuredSearchTest, AProbeThatDoesNotFitIsLeftOut) {
  const ChainTimer timer = [](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
    if (parts[0] > 100) return absl::OutOfRangeError("no memory");
    return parts[0] == 4 ? absl::StatusOr<double>(absl::UnavailableError("away")) : 1;
  };
  const auto probes = TimeProbes(Partitions{{10}, {200}, {50, 50}}, timer, clock_, {.repeats = 2});
  ASSERT_TRUE(probes.ok()) << probes.status();
  ASSERT_EQ(probes->size(), 2u);
  EXPECT_THAT((*probes)[1].parts, ElementsAre(50, 50));
  EXPECT_TRUE(absl::IsUnavailable(TimeProbes(Partitions{{10}, {4}}, timer, clock_, {}).status()));
}

// How many of 40 searches end by noise and cut unevenly, where all partitions but the even one take `others` times as
// long, a run is a fifth off, and one in ten stands still for a while.
struct NoisySearches {
  int by_noise = 0;
  int uneven = 0;
};
NoisySearches SearchInNoise(double others, const Clock& clock) {
  NoisySearches count;
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> noise(1, 0.2);
    const ChainTimer timer = [&](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
      const double stands = random() % 10 == 0 ? 3 : 0;
      return (parts[0] == 2048 ? 1 : others) * std::max(0.1, noise(random)) + stands;
    };
    const auto found = MeasureEntry(4096, 2, {}, timer, clock, {.repeats = 5, .budget = absl::Hours(1)});
    if (!found.ok()) continue;
    count.by_noise += found->end == SearchEnd::kNoise;
    count.uneven += found->parts[0] != 2048;
  }
  return count;
}

TEST_F(MeasuredSearchTest, NoiseEndsTheSearchAndMostlyMovesNothing) {
  const NoisySearches count = SearchInNoise(1, clock_);
  EXPECT_GE(count.by_noise, 30);
  EXPECT_LE(count.uneven, 10);
}

TEST_F(MeasuredSearchTest, AGainAboveTheNoiseMovesThePartsHoweverTheSearchEnds) {
  EXPECT_GE(SearchInNoise(0.4, clock_).uneven, 36);
}

}  // namespace
}  // namespace runahead
