// What KV-Runahead's paper (arXiv 2405.05329) says of its method beside its tables, held against the planner: predicted
// parts, noise, scaling, models with fewer KV heads. Constants are fitted from the baseline's columns alone. What the
// model does not reproduce is asserted as it is, and docs/planning.md says what is missing.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/partition/chain_simulator.h"
#include "scheduler/partition/cost_fit.h"
#include "scheduler/partition/partition_table.h"
#include "scheduler/partition/simulated_search.h"
#include "tests/testing/paper_tables.h"

namespace runahead {
namespace {

using testing::PaperModel;
using testing::PaperTspFit;
using testing::PaperTspRuns;

double TtftOf(const CostModel& model, Schedule schedule, absl::Span<const int64_t> parts) {
  return SimulateChain(model, schedule, parts)->ttft_s;
}

// KVR-P against KVR-S: how much longer a prompt takes with parts interpolated between searched lengths.
struct Predicted {
  double least = std::numeric_limits<double>::infinity(), most = 0;
};
Predicted PredictedOverSearched(const CostModel& model, int width, int64_t first_k, int64_t last_k) {
  std::vector<PartitionEntry> entries;
  for (int64_t k = first_k; k <= last_k; k += 4) {
    PartitionEntry entry{.width = width, .tokens = k * 1024, .fractions = {}};
    const SearchResult searched = SearchSimulated(model, entry.tokens, width, true).value();
    for (const int64_t part : searched.parts) {
      entry.fractions.push_back(static_cast<double>(part) / static_cast<double>(entry.tokens));
    }
    entries.push_back(std::move(entry));
  }
  const PartitionTable table = *PartitionTable::Create(std::move(entries));
  Predicted shares;
  for (int64_t tokens = first_k * 1024; tokens <= last_k * 1024; tokens += 1024) {
    const double predicted = TtftOf(model, Schedule::kKvr, table.Lookup(tokens, width)->parts);
    const double share = predicted / SearchSimulated(model, tokens, width, true)->best.seconds;
    shares = {std::min(shares.least, share), std::max(shares.most, share)};
  }
  std::printf("%d GPUs, %d to %dk: KVR-P takes %.4f to %.4f of KVR-S\n", width, static_cast<int>(first_k),
              static_cast<int>(last_k), shares.least, shares.most);
  return shares;
}

// The paper: within 1.3% where searched lengths are 4k apart. A search that interpolation beats ends too soon.
TEST(PaperClaims, PredictedPartsAreWithinTheStatedShareOfSearchedOnes) {
  const CostModel model = PaperTspFit().model;
  for (const auto& [width, first_k] : {std::pair{4, 4}, std::pair{8, 8}}) {
    const Predicted shares = PredictedOverSearched(model, width, first_k, 16);
    EXPECT_LE(shares.most, 1.013) << width;
    EXPECT_GE(shares.least, 0.9995) << width;
  }
}

// On 8 GPUs 4k runs at the floor, where all parts but very uneven ones take the same time: its entry says nothing of
// longer prompts. The remedy is an entry more where the floor ends.
TEST(PaperClaims, AnEntryAtTheFloorPredictsNothing) {
  EXPECT_GT(PredictedOverSearched(PaperTspFit().model, 8, 4, 8).most, 1.05);
}

// Shares of the time to first token that are lost where transfers are disturbed.
struct NoiseLoss {
  double tsp = 0, even = 0, searched = 0;
};
class NoiseStudy {
 public:
  NoiseStudy(const CostModel& model, int64_t tokens, int width)
      : model_(model),
        even_(EvenParts(tokens, width).value()),
        searched_(SearchSimulated(model, tokens, width, false)->parts) {}

  // By the share of transfers for which TSP loses `tsp_loss`, found by halving, where these take up to `factor` times
  // as long. Means of 20 draws.
  NoiseLoss Where(double tsp_loss, double factor) const {
    double least = 0, most = 1;
    for (int i = 0; i < 12; ++i) {
      const double middle = (least + most) / 2;
      (Loss(Schedule::kTsp, even_, middle, factor) < tsp_loss ? least : most) = middle;
    }
    return {Loss(Schedule::kTsp, even_, most, factor), Loss(Schedule::kKvr, even_, most, factor),
            Loss(Schedule::kKvr, searched_, most, factor)};
  }

 private:
  double Loss(Schedule schedule, absl::Span<const int64_t> parts, double probability, double factor) const {
    constexpr int kDraws = 20;
    double seconds = 0;
    for (uint64_t seed = 0; seed < kDraws; ++seed) {
      CostModel disturbed = model_;
      disturbed.links[0].slowdown = {probability, factor, seed};
      seconds += TtftOf(disturbed, schedule, parts) / kDraws;
    }
    return seconds / TtftOf(model_, schedule, parts) - 1;
  }

  const CostModel model_;
  const std::vector<int64_t> even_, searched_;
};

// The paper's noisy network: TSP loses up to 11.8%, KVR-E 2.7% and KV-Runahead 3.7% at most. No parameter is chosen
// here: for each factor the share of disturbed transfers is the one for which TSP loses 11.8%. A chain that receives
// two layers ahead keeps both promises whatever the factor; one that receives one layer ahead loses 6% and more, so the
// paper's chain received further ahead than the text says.
TEST(PaperClaims, NoiseThatCostsTspATenthCostsKvrWhatThePaperSaysWhateverItsForm) {
  for (const int width : {4, 8}) {
    for (const int64_t k : {8, 16}) {
      for (const double factor : {10.0, 20.0, 50.0}) {
        CostModel model = PaperTspFit().model;
        model.receive_ahead_layers = kRunaheadReceiveAhead;
        const NoiseLoss ours = NoiseStudy(model, k * 1024, width).Where(0.118, factor);
        model.receive_ahead_layers = 1;
        const NoiseLoss papers = NoiseStudy(model, k * 1024, width).Where(0.118, factor);
        std::printf(
            "%d GPUs, %2dk, factor %2.0f: tsp %.1f%%; two layers ahead kvr-e %.1f%%, kvr-s %.1f%%; one %.1f%%, "
            "%.1f%%\n",
            width, static_cast<int>(k), factor, 100 * ours.tsp, 100 * ours.even, 100 * ours.searched, 100 * papers.even,
            100 * papers.searched);
        EXPECT_LE(ours.even, 0.027);
        EXPECT_LE(ours.searched, 0.037);
        EXPECT_LT(papers.even, 0.118);
        if (ours.tsp < 0.117) continue;  // no share of such transfers costs TSP as much
        EXPECT_GT(papers.searched, 0.055);
      }
    }
  }
}

// The paper: at most 17% above what the same chain takes without communication. TSP loses more than that.
TEST(PaperClaims, ScalesAsWithoutCommunication) {
  CostModel model = PaperTspFit().model;
  CostModel free = model;
  free.links[0] = {};
  double kvr = 0, tsp = 0;
  for (const int width : {2, 4, 8}) {
    for (const int64_t k : {4, 8, 12, 16}) {
      const std::vector<int64_t> even = EvenParts(k * 1024, width).value();
      const double with = SearchSimulated(model, k * 1024, width, true)->best.seconds;
      kvr = std::max(kvr, with / SearchSimulated(free, k * 1024, width, true)->best.seconds - 1);
      tsp = std::max(tsp, TtftOf(model, Schedule::kTsp, even) / TtftOf(free, Schedule::kTsp, even) - 1);
    }
  }
  std::printf("communication costs kvr up to %.1f%%, tsp up to %.1f%%\n", 100 * kvr, 100 * tsp);
  EXPECT_LE(kvr, 0.02);
  EXPECT_GT(tsp, 0.17);
}

// A model of Llama-7B's shape with fewer KV heads of its 32: weights and traffic fall, attention's products stay.
CostModel WithKvHeads(CostModel model, double kv_heads) {
  constexpr double kHidden = 4096, kMlp = 3 * kHidden * 11008;
  const double kv_dim = 128 * kv_heads, qkv = kHidden * (kHidden + 2 * kv_dim);
  const double weights = qkv + kHidden * kHidden + kMlp, all = 4 * kHidden * kHidden + kMlp;
  model.linear_s_per_token *= weights / all;
  model.qkv_share = qkv / weights;
  model.kv_bytes_per_token *= kv_heads / 32;
  return model;
}

// At 16k: seconds of TSP and of KV-Runahead on 4 and 8 GPUs.
struct KvHeadsRow {
  double kv_heads;
  double tsp[2], kvr[2];
};
constexpr KvHeadsRow kKvHeads[] = {
    {32, {1.76, 0.92}, {1.24, 0.65}}, {8, {1.67, 0.86}, {1.16, 0.59}}, {1, {1.65, 0.84}, {1.16, 0.57}}};

CostModel FittedOverLinksOf(double bytes_per_s) {
  FitChoice all;
  all.floor = all.latency = true;
  return FitCostModel(PaperModel(bytes_per_s), PaperTspRuns(1), all)->model;
}

// The largest error of TSP's predicted times with 8 KV heads and with 1, which the fit has not seen.
double WorstTspWithFewerHeads(const CostModel& model) {
  double worst = 0;
  for (const KvHeadsRow& row : kKvHeads) {
    if (row.kv_heads == 32) continue;
    for (const int i : {0, 1}) {
      const std::vector<int64_t> even = EvenParts(16384, 4 << i).value();
      worst =
          std::max(worst, std::abs(TtftOf(WithKvHeads(model, row.kv_heads), Schedule::kTsp, even) / row.tsp[i] - 1));
    }
  }
  return worst;
}

// First of what is missing where the model does not know that fewer KV heads gain more: KV costs the paper's TSP more
// than 300 GB/s say. At half of that rate the times of both variants are predicted, at the stated one they are not.
TEST(PaperClaims, KvTakesTwiceTheStatedRateOnTheLinksOfThePaper) {
  const double stated = WorstTspWithFewerHeads(FittedOverLinksOf(300e9));
  const double half = WorstTspWithFewerHeads(FittedOverLinksOf(150e9));
  std::printf("TSP with fewer KV heads: off by up to %.1f%% over 300 GB/s, %.1f%% over 150\n", 100 * stated,
              100 * half);
  EXPECT_GT(stated, 0.022);
  EXPECT_LT(half, 0.011);
}

// Second: where the paper's search ended on 8 GPUs. Its gains of 1.42, 1.46 and 1.47 (by its seconds) lie between what
// the model has by a search as the paper describes it, which falls a little from MHA to MQA, and its best, which
// is 1.55 to 1.58 for all. So the trend, known to be wrong: the model's gain does not rise.
TEST(PaperClaims, TheGainWithFewerKvHeadsDoesNotRiseAsInThePaper) {
  for (const double link : {300e9, 150e9}) {
    std::vector<double> by_papers_search, best;
    for (const KvHeadsRow& row : kKvHeads) {
      const CostModel model = WithKvHeads(FittedOverLinksOf(link), row.kv_heads);
      const double tsp = TtftOf(model, Schedule::kTsp, EvenParts(16384, 8).value());
      by_papers_search.push_back(tsp / SearchSimulated(model, 16384, 8, false)->best.seconds);
      best.push_back(tsp / SearchSimulated(model, 16384, 8, true)->best.seconds);
      std::printf("%.0f GB/s, %2.0f KV heads: paper %.2f, by its search %.2f, best %.2f\n", link / 1e9, row.kv_heads,
                  row.tsp[1] / row.kvr[1], by_papers_search.back(), best.back());
      EXPECT_LT(row.tsp[1] / row.kvr[1], best.back());
    }
    EXPECT_GT(by_papers_search[0], by_papers_search[1]);
    EXPECT_GT(by_papers_search[1], by_papers_search[2]);
    EXPECT_NEAR(by_papers_search[0] - by_papers_search[2], 0.02, 0.01);
    EXPECT_NEAR(best[0], best[2], 0.03);
  }
}

}  // namespace
}  // namespace runahead
