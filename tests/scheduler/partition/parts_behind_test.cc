// The parts that a table gives for a chain behind a known beginning, beside those that a search finds for just that.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/partition/partition_table.h"
#include "scheduler/partition/simulated_search.h"

namespace runahead {
namespace {

constexpr int64_t kEvaluations = 4000;

double BytesPerSecond(double gbps) {
  return gbps * 1e9 / 8;
}

// The cost file of docs/planning.md, with workers alike.
CostModel OverLinks(double gbps) {
  CostModel model;
  model.layers = 32;
  model.kv_bytes_per_token = 131072;
  model.fixed_s = 0.004;
  model.linear_s_per_token = 6.5e-5;
  model.attention_s_per_token_pair = 5.2e-9;
  model.causal_skip = true;
  model.receive_ahead_layers = kRunaheadReceiveAhead;
  model.links[0] = {20e-6, BytesPerSecond(gbps), {}};
  return model;
}

double Best(const CostModel& model, int64_t tokens, int width, const KnownBeginning& known) {
  return SearchSimulated(model, tokens, width, /*thorough=*/true, kEvaluations, known)->best.seconds;
}

// What `plan search` would write where a simulation is the cluster: lengths by doubling, one worker and `width`.
PartitionTable Searched(const CostModel& model, int width) {
  std::vector<PartitionEntry> entries;
  for (int64_t tokens = 256; tokens <= 32768; tokens *= 2) {
    entries.push_back({1, tokens, {1}, SimulateChain(model, Schedule::kKvr, {tokens})->ttft_s});
    const SearchResult found = SearchSimulated(model, tokens, width, /*thorough=*/true, kEvaluations).value();
    PartitionEntry entry{width, tokens, {}, found.best.seconds};
    for (const int64_t part : found.parts) {
      entry.fractions.push_back(static_cast<double>(part) / static_cast<double>(tokens));
    }
    entries.push_back(std::move(entry));
  }
  return PartitionTable::Create(std::move(entries)).value();
}

// Whether this width is a twentieth sooner than any narrower one: where it is not, its parts hardly matter.
bool IsWorthIt(const CostModel& model, int64_t tokens, int width, const KnownBeginning& known, double best_s) {
  for (int narrower = 1; narrower < width; ++narrower) {
    if (Best(model, tokens, narrower, known) < 1.05 * best_s) return false;
  }
  return true;
}

struct Line {
  std::string name;
  CostModel model;
  double mean, worst;  // how much longer the table's parts may take than searched ones
};

std::vector<Line> Lines() {
  CostModel slow_third = OverLinks(200), windows = OverLinks(200), floor = OverLinks(200);
  slow_third.worker_factors = {1, 1, 2.4, 1, 1, 1, 1, 1};
  windows.window_layers = 16;
  windows.window = 4096;
  floor.floor_s = 0.02;
  return {{"200 Gbit/s", OverLinks(200), 0.01, 0.02},
          {"third worker 2.4 times as slow", slow_third, 0.015, 0.025},
          {"windows of 4096 in half of the layers", windows, 0.015, 0.045},
          {"no pass below 20 ms", floor, 0.015, 0.025},
          {"25 Gbit/s", OverLinks(25), 0.06, 0.16}};
}

class PartsBehindTest : public ::testing::TestWithParam<Line> {};

TEST_P(PartsBehindTest, TakeLittleLongerThanSearchedOnes) {
  const CostModel& model = GetParam().model;
  for (const int width : {2, 3, 4, 8}) {
    const PartitionTable table = Searched(model, width);
    double sum = 0, worst = 0;
    int count = 0;
    for (const int64_t s0 : {700, 3000, 9000, 20000}) {
      for (const int64_t rest : {200, 700, 3000, 10000}) {
        const KnownBeginning known{s0, model.links[0].bytes_per_s};
        const double best = Best(model, rest, width, known);
        if (!IsWorthIt(model, rest, width, known, best)) continue;
        const std::vector<int64_t> parts = table.PartsBehind(s0, s0 + rest, width).value();
        const double more = SimulateChain(model, Schedule::kKvr, parts, known)->ttft_s / best - 1;
        EXPECT_LT(more, GetParam().worst) << width << " workers, " << rest << " tokens behind " << s0;
        worst = std::max(worst, more);
        sum += more;
        ++count;
      }
    }
    if (count == 0) continue;
    std::printf("%s, %d workers, %d lengths: %.1f %% more in the mean, %.1f %% at most\n", GetParam().name.c_str(),
                width, count, 100 * sum / count, 100 * worst);
    EXPECT_LT(sum / count, GetParam().mean) << width << " workers";
  }
}

INSTANTIATE_TEST_SUITE_P(Lines, PartsBehindTest, ::testing::ValuesIn(Lines()),
                         [](const auto& info) { return absl::StrCat("Line", info.index); });

}  // namespace
}  // namespace runahead
