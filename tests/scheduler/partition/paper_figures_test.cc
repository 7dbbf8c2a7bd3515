// The planner against the tables of KV-Runahead (arXiv 2405.05329): constants are fitted from its baseline's columns
// alone, and what they predict is compared with its KV-Runahead columns. Each test prints both side by side.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/partition/chain_simulator.h"
#include "scheduler/partition/cost_fit.h"
#include "scheduler/partition/partition_search.h"
#include "scheduler/partition/simulated_search.h"
#include "tests/testing/paper_tables.h"

namespace runahead {
namespace {

using ::testing::IsEmpty;
using testing::kPaperRows;
using testing::kPaperSlowLinkRows;
using testing::kStatedErrors;
using testing::kStatedThousands;
using testing::PaperKvr;
using testing::PaperModel;
using testing::PaperRow;
using testing::PaperSingleFit;
using testing::PaperSlowLinkRow;
using testing::PaperTspFit;
using testing::PaperTspRuns;
using testing::StatedErrors;

double Seconds(const CostModel& model, absl::Span<const int64_t> parts, Schedule schedule = Schedule::kKvr) {
  return SimulateChain(model, schedule, parts)->ttft_s;
}

SearchResult Search(const CostModel& model, int64_t tokens, int width, bool thorough = false) {
  return SearchSimulated(model, tokens, width, thorough).value();
}

double Error(double predicted, double paper) {
  return predicted / paper - 1;
}

// Prints a column and returns its errors.
std::vector<double> CompareKvr(const CostModel& model, int width) {
  std::vector<double> errors;
  for (const PaperRow& row : kPaperRows) {
    const double paper = width == 4 ? row.kvr4 : row.kvr8;
    const double found = Search(model, row.k * 1024, width).best.seconds;
    errors.push_back(Error(found, paper));
    std::printf("%d GPUs, %2dk: paper's KVR-S %.3f s, predicted %.3f (%+.1f%%)\n", width, static_cast<int>(row.k),
                paper, found, 100 * Error(found, paper));
  }
  return errors;
}

// What docs/planning.md says of these predictions; `plan simulate` is held to it by plan_simulate_test.
TEST(PaperFigures, AreThoseThatTheDocsState) {
  const CostModel tsp = PaperTspFit().model, single = PaperSingleFit().model;
  for (const StatedErrors& stated : kStatedErrors) {
    for (size_t i = 0; i < stated.percent.size(); ++i) {
      const PaperRow& row = kPaperRows[i + 2];
      ASSERT_EQ(row.k, kStatedThousands[i]);
      const double found = Search(stated.tsp ? tsp : single, row.k * 1024, stated.width, stated.thorough).best.seconds;
      EXPECT_NEAR(100 * Error(found, PaperKvr(row, stated.width)), stated.percent[i], 0.06)
          << (stated.tsp ? "from TSP" : "from the single GPU") << (stated.thorough ? ", thorough, " : ", ")
          << stated.width << " GPUs, " << row.k << "k";
    }
  }
}

TEST(PaperFigures, BothTspColumnsFollowTheModel) {
  const CostFit fit = PaperTspFit();
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
  const CostFit all = FitCostModel(PaperModel(300e9), PaperTspRuns(1), {}).value();
  EXPECT_TRUE(all.poor());
  const CostFit from_4k = FitCostModel(PaperModel(300e9), PaperTspRuns(4), {}).value();
  EXPECT_FALSE(from_4k.poor());
  EXPECT_LT(from_4k.worst_error, 0.02);
}

// What was to be reached: KVR-S within 8% of every entry from 8k to 16k on 4 and 8 GPUs, within 15% at 4k. With five
// constants from all entries, which predict the short prompts too, and with three from the entries of 4k and more,
// which cannot. On 4 GPUs this bounds the cost model; on 8 it bounds cost model and search together (see below).
TEST(PaperFigures, PredictsKvrFromTheTspColumns) {
  const CostModel five = PaperTspFit().model;
  const CostModel three = FitCostModel(PaperModel(300e9), PaperTspRuns(4), {})->model;
  for (int width : {4, 8}) {
    const std::vector<double> by_five = CompareKvr(five, width);
    const std::vector<double> by_three = CompareKvr(three, width);
    for (int i : {0, 1}) EXPECT_LT(std::abs(by_five[i]), 0.08) << width << " GPUs, " << kPaperRows[i].k << "k";
    for (const std::vector<double>& errors : {by_five, by_three}) {
      EXPECT_LT(std::abs(errors[2]), 0.15) << width;
      for (int i : {3, 4, 5}) EXPECT_LT(std::abs(errors[i]), 0.08) << width << " GPUs, " << kPaperRows[i].k << "k";
    }
  }
}

// Why 8% is no bound of the cost model on 8 GPUs: the best partition that it has there is 8 to 10% below the paper's
// figures (kStatedErrors, thorough). The paper's search ends short of it, and its error comes out smaller for that.
// Either the paper's search left as much on its GPUs, or its chain of 8 had a cost that the baseline's columns do not
// show: they cannot tell which. On 4 GPUs both searches end alike.
TEST(PaperFigures, OnlyOnEightGpusTheModelsBestIsBelowWhatThePapersSearchFinds) {
  const CostModel model = PaperTspFit().model;
  for (const PaperRow& row : kPaperRows) {
    const double found = Search(model, row.k * 1024, 4).best.seconds;
    EXPECT_NEAR(Search(model, row.k * 1024, 4, true).best.seconds, found, 0.001 * found) << row.k;
  }
  EXPECT_LT(Search(model, 16384, 8, true).best.seconds, 0.95 * Search(model, 16384, 8).best.seconds);
}

// Fitted to the single GPU alone the model misses what a worker of a chain costs beside its share of the work: short
// parts run at the floor, and fixed_s comes out as 1 ms where the TSP columns give 16. The fit itself is perfect.
TEST(PaperFigures, TheSingleGpuColumnAloneIsFurtherOffOnEightGpus) {
  const CostFit fit = PaperSingleFit();
  EXPECT_THAT(fit.doubts, IsEmpty());
  EXPECT_NEAR(fit.model.linear_s_per_token * 1024, 0.0729, 0.006);
  EXPECT_NEAR(fit.model.attention_s_per_token_pair * 1048576, 0.02135, 0.0006);
  const std::vector<double> single = CompareKvr(fit.model, 8);
  const std::vector<double> tsp = CompareKvr(PaperTspFit().model, 8);
  for (int i : {2, 3, 4, 5}) EXPECT_GT(std::abs(single[i]), std::abs(tsp[i])) << kPaperRows[i].k;
}

// The paper's example of its table: 10k on 4 GPUs from the entries searched at 8k and 12k.
TEST(PaperFigures, InterpolatesTheTenThousandTokenEntry) {
  const CostModel model = PaperTspFit().model;
  const double paper[] = {0.350, 0.255, 0.210, 0.185};
  for (const bool thorough : {false, true}) {
    const auto search = [&](int64_t tokens) { return Search(model, tokens, 4, thorough).parts; };
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
  const SearchResult result = Search(PaperTspFit().model, 16384, 2);
  std::printf("boundary %d (9728), %d evaluations\n", static_cast<int>(result.parts[0]),
              static_cast<int>(result.evaluations));
  EXPECT_NEAR(static_cast<double>(result.parts[0]), 9728, 0.03 * 9728);
}

// The paper's table at 10 GB/s: the width that is fastest in simulation is, in its table, within 10% of the best. Two
// GPUs are predicted within 4%, four up to 22% too fast: the paper's transfers hide less than ours.
TEST(PaperFigures, BestWidthOverSlowLinks) {
  CostModel model = PaperTspFit().model;
  model.links[0].bytes_per_s = 10e9;
  for (const PaperSlowLinkRow& row : kPaperSlowLinkRows) {
    const double paper[] = {row.one, row.two, row.four};
    double predicted[3];
    for (int i = 0; i < 3; ++i) predicted[i] = Search(model, row.k * 1024, 1 << i).best.seconds;
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

// Table 3, the paper's figures and ours side by side, to the two digits that the docs have (plan_simulate_test compares
// these). The paper's are between the two schedules over 10 GB/s; over 1 GB/s on two GPUs they are below what its links
// can carry from 8k on, so these gave more than they say.
TEST(PaperFigures, TableOfPoorLinks) {
  CostModel model = PaperTspFit().model;
  for (const testing::PaperTable3Row& row : testing::kPaperTable3) {
    for (size_t i = 0; i < row.paper.size(); ++i) {
      const int64_t tokens = testing::kPaperTable3Thousands[i] * 1024;
      double found[2];
      for (const int64_t ahead : {int64_t{1}, kRunaheadReceiveAhead}) {
        model.links[0].bytes_per_s = row.link_bytes_per_s;
        model.receive_ahead_layers = ahead;
        found[ahead - 1] = Search(model, tokens, row.width, true).best.seconds;
      }
      std::printf("%2.0f GB/s, %d GPUs, %2dk: paper %.2f s, one layer ahead %.2f (%+.0f%%), two %.2f (%+.0f%%)\n",
                  row.link_bytes_per_s / 1e9, row.width, static_cast<int>(testing::kPaperTable3Thousands[i]),
                  row.paper[i], found[0], 100 * Error(found[0], row.paper[i]), found[1],
                  100 * Error(found[1], row.paper[i]));
      EXPECT_NEAR(found[0], row.one_ahead[i], 0.0051);
      EXPECT_NEAR(found[1], row.two_ahead[i], 0.0051);
    }
  }
}

// Llama-7B on four GPUs over 8 gigabits a second: the paper's search ends in a corner, where every worker still has
// some of the prompt, and is no faster than half of what the same model allows at 4k.
TEST(PaperFigures, ThePapersSearchEndsInACornerOverSlowLinks) {
  CostModel model = PaperTspFit().model;
  model.links[0].bytes_per_s = 1e9;
  model.receive_ahead_layers = kRunaheadReceiveAhead;
  for (const auto& [k, paper, thorough] :
       {std::tuple{4, 1.09, 0.55}, std::tuple{8, 2.19, 1.45}, std::tuple{12, 3.29, 2.60}}) {
    EXPECT_NEAR(Search(model, k * 1024, 4).best.seconds, paper, 0.0051) << k;
    EXPECT_NEAR(Search(model, k * 1024, 4, true).best.seconds, thorough, 0.0051) << k;
  }
}

// The paper, on background traffic: TSP loses more than 10% of its TTFT, KV-Runahead at most 3.7%. Here a fifth of all
// transfers takes up to 20 times as long; means of 20 draws. On 4 GPUs that costs TSP about what it does in the paper;
// on 8 it costs a third of its TTFT, and KV-Runahead more than 3.7% too, the more the better its parts are balanced.
TEST(PaperFigures, KvrLosesLessThanTspOnDisturbedLinks) {
  for (const int64_t ahead : {int64_t{1}, kRunaheadReceiveAhead}) {
    CostModel model = PaperTspFit().model;
    model.receive_ahead_layers = ahead;
    for (int width : {4, 8}) {
      const std::vector<int64_t> parts = Search(model, 8192, width).parts;
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
      EXPECT_GT(tsp, 0.1);
      EXPECT_LT(kvr, tsp * (ahead == kRunaheadReceiveAhead ? 0.2 : 0.85));
      if (ahead == kRunaheadReceiveAhead && width == 4) {
        EXPECT_LT(kvr, 0.037);
      }
    }
  }
}

// What decides the cost of a layer. `mlp`: weights of its matrices.
struct LayerShape {
  double hidden, q_dim, kv_dim, mlp;
  double qkv() const { return hidden * (q_dim + 2 * kv_dim); }
  double weights() const { return qkv() + hidden * q_dim + mlp; }
};
constexpr double kHidden = 4096;
constexpr LayerShape kLlama7b{kHidden, kHidden, kHidden, 3 * kHidden * 11008};
// One KV head for 71 of queries.
constexpr LayerShape kFalcon7b{4544, 4544, 64, 8 * 4544. * 4544};

// A model of as many layers as Llama-7B on its machine: by what its products and scores are beside Llama's.
CostModel WithShape(CostModel model, const LayerShape& shape) {
  model.linear_s_per_token *= shape.weights() / kLlama7b.weights();
  model.attention_s_per_token_pair *= shape.q_dim / kLlama7b.q_dim;
  model.qkv_share = shape.qkv() / shape.weights();
  model.kv_bytes_per_token *= shape.kv_dim / kLlama7b.kv_dim;
  return model;
}

// How many times as fast as TSP the best parts are.
double GainOverTsp(const CostModel& model, int64_t tokens, int width) {
  return Seconds(model, EvenParts(tokens, width).value(), Schedule::kTsp) / Search(model, tokens, width).best.seconds;
}

// The paper's variants of Llama-7B on 8 GPUs at 16k: how many times as fast as TSP. Both sides send less and the gain
// hardly changes, where it rises in the paper: paper_claims_test has what is missing.
TEST(PaperFigures, FewerKvHeadsGainAboutWhatTheyGainInThePaper) {
  const CostModel model = PaperTspFit().model;
  for (const auto& [name, kv_heads, paper] :
       {std::tuple{"MHA", 32, 1.41}, std::tuple{"GQA8", 8, 1.46}, std::tuple{"MQA", 1, 1.48}}) {
    LayerShape shape = kLlama7b;
    shape.kv_dim = 128.0 * kv_heads;
    const double gain = GainOverTsp(WithShape(model, shape), 16384, 8);
    std::printf("%s: paper %.2f times as fast as TSP, predicted %.2f\n", name, paper, gain);
    EXPECT_NEAR(gain, paper, 0.07) << name;
  }
}

// The paper gives Falcon-7B's largest gain, 1.63, and no times of it: its costs are Llama-7B's here, by shape.
// Attention that costs several times as much, as one KV head for 71 may on the paper's machine, would make it 1.53 at
// most.
TEST(PaperFigures, FalconGainsLessThanInThePaper) {
  double largest = 0;
  for (const double bytes_per_s : {300e9, 10e9}) {
    CostModel model = WithShape(PaperTspFit().model, kFalcon7b);
    model.links[0].bytes_per_s = bytes_per_s;
    for (const PaperRow& row : kPaperRows) {
      for (const int width : {4, 8}) largest = std::max(largest, GainOverTsp(model, row.k * 1024, width));
    }
  }
  std::printf("Falcon-7B: paper up to 1.63 times as fast as TSP, predicted up to %.2f\n", largest);
  EXPECT_NEAR(largest, 1.43, 0.03);
}

}  // namespace
}  // namespace runahead
