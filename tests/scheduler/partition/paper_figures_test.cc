// The planner against the tables of KV-Runahead (arXiv 2405.05329): constants are fitted from its baseline's columns
// alone, and what they predict is compared with its KV-Runahead columns. Each test prints both side by side.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/partition/chain_simulator.h"
#include "scheduler/partition/cost_fit.h"
#include "scheduler/partition/partition_search.h"

namespace runahead {
namespace {

using ::testing::IsEmpty;

// Seconds on A100s, FP16, Llama-7B. Lengths in units of 1024 tokens.
struct Row {
  int64_t k = 0;
  double tsp4 = 0, kvr4 = 0, tsp8 = 0, kvr8 = 0;
};
constexpr Row kRows[] = {{1, 0.107, 0.097, 0.117, 0.098}, {2, 0.111, 0.100, 0.117, 0.103},
                         {4, 0.20, 0.17, 0.12, 0.11},     {8, 0.54, 0.41, 0.30, 0.22},
                         {12, 1.06, 0.76, 0.57, 0.41},    {16, 1.76, 1.24, 0.92, 0.65}};

// The single GPU, and with links of 10 GB/s two and four.
struct SlowLinkRow {
  int64_t k = 0;
  double one = 0, two = 0, four = 0;
};
constexpr SlowLinkRow kSlowLinkRows[] = {
    {1, 0.10, 0.10, 0.10}, {2, 0.24, 0.16, 0.19}, {4, 0.65, 0.38, 0.36}, {8, 1.95, 0.99, 0.72}, {12, 3.95, 1.82, 1.15}};

// Llama-7B: 32 layers, K and V of 4096 values of 2 bytes in each. The paper's attention computes the rectangle.
CostModel Llama7B(double bytes_per_s) {
  CostModel model;
  model.layers = 32;
  model.kv_bytes_per_token = 2 * 32 * 4096 * 2;
  model.links[0].bytes_per_s = bytes_per_s;
  return model;
}

std::vector<TimedRun> TspColumns(int64_t shortest_k) {
  std::vector<TimedRun> runs;
  for (const Row& row : kRows) {
    if (row.k < shortest_k) continue;
    runs.push_back({Schedule::kTsp, EvenParts(row.k * 1024, 4).value(), row.tsp4});
    runs.push_back({Schedule::kTsp, EvenParts(row.k * 1024, 8).value(), row.tsp8});
  }
  return runs;
}

// All twelve entries. Up to 2k tokens (on 8 GPUs: 4k) they do not fall any further, which no sum of a fixed, a linear
// and an attention term follows: kernels cannot be started any faster. And at 1k they grow with the number of GPUs:
// latency. With these two constants beside the three all twelve entries are within 1.5%.
CostFit FitOfTspColumns() {
  FitChoice all;
  all.floor = all.latency = true;
  return FitCostModel(Llama7B(300e9), TspColumns(1), all).value();
}

double Seconds(const CostModel& model, absl::Span<const int64_t> parts, Schedule schedule = Schedule::kKvr) {
  return SimulateChain(model, schedule, parts)->ttft_s;
}

SearchObjective Simulated(const CostModel& model) {
  return ObjectiveOf(
      [model](absl::Span<const int64_t> parts) -> absl::StatusOr<double> { return Seconds(model, parts); });
}

// The paper's own search as its example shows it: three levels, the first with a quarter of an even part (C = 96 on 3:
// strides 8, 4, 2), one scan each; two GPUs by halving. KVR-S is what this finds.
SearchResult PaperSearch(const CostModel& model, int64_t tokens, int width) {
  SearchOptions options;
  options.thorough = false;
  if (width > 2) {
    options.first_stride = tokens / width / 4;
    options.last_stride = options.first_stride / 4;
  }
  return SearchPartition(tokens, width, Simulated(model), options).value();
}

double Error(double predicted, double paper) {
  return predicted / paper - 1;
}

// Prints a column and returns its errors.
std::vector<double> CompareKvr(const CostModel& model, int width) {
  std::vector<double> errors;
  for (const Row& row : kRows) {
    const double paper = width == 4 ? row.kvr4 : row.kvr8;
    const double found = PaperSearch(model, row.k * 1024, width).best.seconds;
    errors.push_back(Error(found, paper));
    std::printf("%d GPUs, %2dk: paper's KVR-S %.3f s, predicted %.3f (%+.1f%%)\n", width, static_cast<int>(row.k),
                paper, found, 100 * Error(found, paper));
  }
  return errors;
}

TEST(PaperFigures, BothTspColumnsFollowTheModel) {
  const CostFit fit = FitOfTspColumns();
  EXPECT_THAT(fit.doubts, IsEmpty());
  EXPECT_LT(fit.worst_error, 0.02);
  const CostModel& model = fit.model;
  std::printf("fixed %.4f s, linear %.4f s/k, attention %.5f s/k^2, floor %.4f s, latency %.0f us; rms error %.1f%%\n",
              model.fixed_s, model.linear_s_per_token * 1024, model.attention_s_per_token_pair * 1048576, model.floor_s,
              model.links[0].latency_s * 1e6, 100 * fit.rms_error);
  // The single GPU, which the fit has not seen, where it is long enough to matter: T(C) = 0.0729 C + 0.02135 C^2.
  EXPECT_NEAR(model.linear_s_per_token * 1024, 0.0729, 0.02);
  EXPECT_NEAR(model.attention_s_per_token_pair * 1048576, 0.02135, 0.001);
}

// Without floor and latency the flat entries cannot be fitted, and the fit says so.
TEST(PaperFigures, ThreeConstantsAreTooFewForTheShortPrompts) {
  const CostFit all = FitCostModel(Llama7B(300e9), TspColumns(1), {}).value();
  EXPECT_TRUE(all.poor());
  const CostFit from_4k = FitCostModel(Llama7B(300e9), TspColumns(4), {}).value();
  EXPECT_FALSE(from_4k.poor());
  EXPECT_LT(from_4k.worst_error, 0.02);
}

// The bounds: KVR-S within 8% of every entry from 8k to 16k on 4 and 8 GPUs, within 15% at 4k. With five constants from
// all entries, which predict the short prompts too, and with three from the entries of 4k and more, which cannot.
TEST(PaperFigures, PredictsKvrFromTheTspColumns) {
  const CostModel five = FitOfTspColumns().model;
  const CostModel three = FitCostModel(Llama7B(300e9), TspColumns(4), {})->model;
  for (int width : {4, 8}) {
    const std::vector<double> by_five = CompareKvr(five, width);
    const std::vector<double> by_three = CompareKvr(three, width);
    for (int i : {0, 1}) EXPECT_LT(std::abs(by_five[i]), 0.08) << width << " GPUs, " << kRows[i].k << "k";
    for (const std::vector<double>& errors : {by_five, by_three}) {
      EXPECT_LT(std::abs(errors[2]), 0.15) << width;
      for (int i : {3, 4, 5}) EXPECT_LT(std::abs(errors[i]), 0.08) << width << " GPUs, " << kRows[i].k << "k";
    }
  }
}

// Three levels move a boundary by at most 3.5 first strides, less than one even part: enough on 4 GPUs, not on 8. A
// search that goes on finds partitions there that the model puts 8 to 10% below the paper's figures: either its search
// left that much, or its chain of 8 had a cost that the baseline's columns do not show. They cannot tell which.
TEST(PaperFigures, ALongerSearchFindsBetterPartitionsOnEightGpus) {
  const CostModel model = FitOfTspColumns().model;
  for (const Row& row : kRows) {
    if (row.k < 8) continue;
    const double four = SearchPartition(row.k * 1024, 4, Simulated(model), {})->best.seconds;
    const double eight = SearchPartition(row.k * 1024, 8, Simulated(model), {})->best.seconds;
    std::printf("%2dk, best partition: 4 GPUs %.3f s (%+.1f%% of KVR-S), 8 GPUs %.3f (%+.1f%%)\n",
                static_cast<int>(row.k), four, 100 * Error(four, row.kvr4), eight, 100 * Error(eight, row.kvr8));
    EXPECT_LT(std::abs(Error(four, row.kvr4)), 0.02);
    EXPECT_NEAR(Error(eight, row.kvr8), -0.09, 0.02);
    EXPECT_LT(eight, 0.96 * PaperSearch(model, row.k * 1024, 8).best.seconds);
  }
}

// Fitted to the single GPU alone the model misses what a worker of a chain costs beside its share of the work: short
// parts run at the floor, and fixed_s comes out as 1 ms where the TSP columns give 16. The fit itself is perfect.
TEST(PaperFigures, TheSingleGpuColumnAloneIsFurtherOffOnEightGpus) {
  std::vector<TimedRun> runs;
  for (const SlowLinkRow& row : kSlowLinkRows) runs.push_back({Schedule::kKvr, {row.k * 1024}, row.one});
  const CostFit fit = FitCostModel(Llama7B(300e9), runs, {}).value();
  EXPECT_THAT(fit.doubts, IsEmpty());
  EXPECT_NEAR(fit.model.linear_s_per_token * 1024, 0.0729, 0.006);
  EXPECT_NEAR(fit.model.attention_s_per_token_pair * 1048576, 0.02135, 0.0006);
  const std::vector<double> single = CompareKvr(fit.model, 8);
  const std::vector<double> tsp = CompareKvr(FitOfTspColumns().model, 8);
  for (int i : {2, 3, 4, 5}) EXPECT_GT(std::abs(single[i]), std::abs(tsp[i])) << kRows[i].k;
  EXPECT_NEAR(single[3], -0.147, 0.01);
  EXPECT_NEAR(single[5], -0.041, 0.01);
}

// The paper's example of its table: 10k on 4 GPUs from the entries searched at 8k and 12k.
TEST(PaperFigures, InterpolatesTheTenThousandTokenEntry) {
  const CostModel model = FitOfTspColumns().model;
  const double paper[] = {0.350, 0.255, 0.210, 0.185};
  for (const bool as_in_the_paper : {true, false}) {
    const auto search = [&](int64_t tokens) {
      return as_in_the_paper ? PaperSearch(model, tokens, 4).parts
                             : SearchPartition(tokens, 4, Simulated(model), {})->parts;
    };
    const std::vector<int64_t> at_8k = search(8192), at_12k = search(12288);
    std::printf("10k on 4 GPUs:");
    for (int i = 0; i < 4; ++i) {
      const double fraction = (static_cast<double>(at_8k[i]) / 8192 + static_cast<double>(at_12k[i]) / 12288) / 2;
      EXPECT_NEAR(fraction, paper[i], 0.02);
      std::printf(" %.3f (%.3f)", fraction, paper[i]);
    }
    std::printf("\n");
  }
}

// The paper's example for two: C = 16384, boundary 9728.
TEST(PaperFigures, TheBoundaryOfTwoGpus) {
  const SearchResult result = PaperSearch(FitOfTspColumns().model, 16384, 2);
  std::printf("boundary %d (9728), %d evaluations\n", static_cast<int>(result.parts[0]),
              static_cast<int>(result.evaluations));
  EXPECT_NEAR(static_cast<double>(result.parts[0]), 9728, 0.03 * 9728);
}

// The paper's table at 10 GB/s: the width that is fastest in simulation is, in its table, within 10% of the best. Two
// GPUs are predicted within 4%, four up to 22% too fast: the paper's transfers hide less than ours.
TEST(PaperFigures, BestWidthOverSlowLinks) {
  CostModel model = FitOfTspColumns().model;
  model.links[0].bytes_per_s = 10e9;
  for (const SlowLinkRow& row : kSlowLinkRows) {
    const double paper[] = {row.one, row.two, row.four};
    double predicted[3];
    for (int i = 0; i < 3; ++i) predicted[i] = PaperSearch(model, row.k * 1024, 1 << i).best.seconds;
    std::printf("10 GB/s, %2dk:", static_cast<int>(row.k));
    for (int i = 0; i < 3; ++i) {
      std::printf("  %d GPUs %.3f (%.2f, %+.1f%%)", 1 << i, predicted[i], paper[i],
                  100 * Error(predicted[i], paper[i]));
    }
    std::printf("\n");
    const int64_t choice = std::min_element(predicted, predicted + 3) - predicted;
    EXPECT_LE(paper[choice], 1.1 * *std::min_element(paper, paper + 3)) << row.k;
    EXPECT_LT(std::abs(Error(predicted[1], row.two)), 0.04) << row.k;
  }
}

// The paper, on background traffic: TSP loses more than 10% of its TTFT, KV-Runahead at most 3.7%. Here a fifth of all
// transfers takes up to 20 times as long; means of 20 draws.
TEST(PaperFigures, KvrLosesLessThanTspOnDisturbedLinks) {
  for (const int64_t ahead : {int64_t{1}, kRunaheadReceiveAhead}) {
    CostModel model = FitOfTspColumns().model;
    model.receive_ahead_layers = ahead;
    for (int width : {4, 8}) {
      const std::vector<int64_t> parts = PaperSearch(model, 8192, width).parts;
      const std::vector<int64_t> even = EvenParts(8192, width).value();
      double kvr = 0, tsp = 0;
      for (uint64_t seed = 0; seed < 20; ++seed) {
        CostModel disturbed = model;
        disturbed.links[0].slowdown = {0.2, 20, seed};
        kvr += Error(Seconds(disturbed, parts), Seconds(model, parts)) / 20;
        tsp += Error(Seconds(disturbed, even, Schedule::kTsp), Seconds(model, even, Schedule::kTsp)) / 20;
      }
      std::printf("%d GPUs, received %d ahead: kvr loses %.1f%%, tsp %.1f%%\n", width, static_cast<int>(ahead),
                  100 * kvr, 100 * tsp);
      EXPECT_LT(kvr, 0.75 * tsp);
      EXPECT_GT(tsp, 0.1);
      if (ahead == kRunaheadReceiveAhead) {
        EXPECT_LT(kvr, 0.037);
      }
    }
  }
}

}  // namespace
}  // namespace runahead
