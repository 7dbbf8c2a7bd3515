// The search against a long random one, on random cost models of all kinds: bound by compute, by links, by fixed
// costs, with workers and links that differ.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "gtest/gtest.h"
#include "scheduler/partition/chain_simulator.h"
#include "scheduler/partition/partition_search.h"

namespace runahead {
namespace {

using Random = std::mt19937_64;

double Uniform(Random& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

// Between low and high, every decade as likely as any other.
double Scale(Random& random, double low, double high) {
  return std::exp(Uniform(random, std::log(low), std::log(high)));
}

// One worker takes some seconds for the prompt, a part of it for attention; K and V of the whole prompt take between
// a thousandth and twice of that over one link.
CostModel RandomModel(Random& random, int64_t tokens, int width) {
  CostModel model;
  const double length = static_cast<double>(tokens);
  const double attention = Uniform(random, 0, 1);
  model.layers = std::uniform_int_distribution<int>(2, 12)(random);
  model.fixed_s = Uniform(random, 0, 0.1);
  model.linear_s_per_token = (1 - attention) / length;
  model.attention_s_per_token_pair = attention / length / length;
  model.causal_skip = random() % 2 == 0;
  model.floor_s = random() % 4 == 0 ? Uniform(random, 0, 0.2) : 0;
  model.qkv_share = Uniform(random, 0.1, 0.4);
  model.receive_ahead_layers = 1 + static_cast<int64_t>(random() % 2);
  model.kv_bytes_per_token = 1 / length;
  const bool alike = random() % 2 == 0;
  const double bandwidth = Scale(random, 0.5, 1000);
  model.links.clear();
  for (int i = 0; i + 1 < std::max(width, 2); ++i) {
    model.links.push_back({Scale(random, 1e-7, 1e-3), alike ? bandwidth : bandwidth * Scale(random, 0.5, 2), {}});
  }
  for (int i = 0; i < width; ++i) model.worker_factors.push_back(alike ? 1 : Scale(random, 0.5, 2));
  return model;
}

// Hill climbing from many random partitions, by random changes of random size to some of the parts.
double LongRandomSearch(Random& random, const CostModel& model, int64_t tokens, int width, int evaluations) {
  constexpr int kRestarts = 8;
  double best = 1e30;
  for (int restart = 0; restart < kRestarts; ++restart) {
    std::vector<double> weights(width);
    for (double& weight : weights) weight = Scale(random, 0.2, 1);
    double here = 1e30, change = 0.3;
    for (int i = 0; i < evaluations / kRestarts; ++i) {
      std::vector<double> tried = weights;
      for (double& weight : tried) {
        if (i > 0 && random() % 2 == 0) weight *= std::exp(std::normal_distribution<double>(0, change)(random));
      }
      double sum = 0;
      for (double weight : tried) sum += weight;
      std::vector<double> fractions;
      for (double weight : tried) fractions.push_back(weight / sum);
      const double seconds = SimulateChain(model, Schedule::kKvr, RoundParts(tokens, fractions))->ttft_s;
      change = seconds < here ? std::min(0.5, change * 1.3) : std::max(1e-4, change * 0.99);
      if (seconds > here) continue;
      here = seconds;
      weights = std::move(tried);
    }
    best = std::min(best, here);
  }
  return best;
}

// The bound: within 1% of what a long search finds, on 200 models with 2 to 6 workers.
TEST(PartitionSearch, ComesWithinAPercentOfALongRandomSearch) {
  constexpr int kModels = 200;
  Random random(1);
  double worst = 0;
  std::vector<int64_t> evaluations[7];
  for (int i = 0; i < kModels; ++i) {
    const int width = 2 + i % 5;
    const int64_t tokens = static_cast<int64_t>(Scale(random, 200, 20000));
    const CostModel model = RandomModel(random, tokens, width);
    const SearchObjective objective = ObjectiveOf([&](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
      return SimulateChain(model, Schedule::kKvr, parts)->ttft_s;
    });
    SearchOptions options;
    options.last_stride = std::max<int64_t>(1, tokens / 2048);
    const SearchResult found = SearchPartition(tokens, width, objective, options).value();
    const double reference = LongRandomSearch(random, model, tokens, width, 2000 * width);
    const double excess = found.best.seconds / reference - 1;
    EXPECT_LE(excess, 0.01) << "model " << i << ", width " << width << ", " << tokens << " tokens";
    worst = std::max(worst, excess);
    evaluations[width].push_back(found.evaluations);
  }
  for (int width = 2; width <= 6; ++width) {
    std::vector<int64_t>& counts = evaluations[width];
    std::sort(counts.begin(), counts.end());
    std::printf("width %d: %lld evaluations in the median, %lld at most\n", width,
                static_cast<long long>(counts[counts.size() / 2]), static_cast<long long>(counts.back()));
  }
  std::printf("worst: %+.2f%% of the long search\n", 100 * worst);
}

}  // namespace
}  // namespace runahead
