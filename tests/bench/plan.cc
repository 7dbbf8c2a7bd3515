// What planning costs: one simulation, a search as `runahead plan` makes it, and the lookup that every request pays.
// One thread; the model is Llama-7B on A100s as fitted in tests/scheduler/partition/paper_figures_test.cc.
#include <vector>

#include "benchmark/benchmark.h"
#include "scheduler/partition/chain_simulator.h"
#include "scheduler/partition/partition_search.h"
#include "scheduler/partition/partition_table.h"

namespace runahead {
namespace {

CostModel Llama7B() {
  CostModel model;
  model.layers = 32;
  model.kv_bytes_per_token = 2 * 32 * 4096 * 2;
  model.fixed_s = 0.0158;
  model.linear_s_per_token = 0.0848 / 1024;
  model.attention_s_per_token_pair = 0.02159 / 1048576;
  model.floor_s = 0.1014;
  model.links[0] = {59e-6, 300e9, {}};
  return model;
}

// Arguments: width, tokens.
void Simulate(benchmark::State& state) {
  const CostModel model = Llama7B();
  const std::vector<int64_t> parts = EvenParts(state.range(1), static_cast<int>(state.range(0))).value();
  for (auto _ : state) benchmark::DoNotOptimize(SimulateChain(model, SimulatedSchedule::kKvr, parts));
}
BENCHMARK(Simulate)->Args({1, 16384})->Args({4, 16384})->Args({8, 16384})->Args({16, 16384});

// Aim: 8 workers at 16k in under 2 s.
void Search(benchmark::State& state) {
  const CostModel model = Llama7B();
  const SearchObjective objective = ObjectiveOf([&](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
    return SimulateChain(model, SimulatedSchedule::kKvr, parts)->ttft_s;
  });
  int64_t evaluations = 0;
  for (auto _ : state) {
    evaluations = SearchPartition(state.range(1), static_cast<int>(state.range(0)), objective, {})->evaluations;
  }
  state.counters["evaluations"] = static_cast<double>(evaluations);
}
BENCHMARK(Search)
    ->Args({2, 16384})
    ->Args({4, 16384})
    ->Args({6, 16384})
    ->Args({8, 16384})
    ->Args({16, 16384})
    ->Unit(benchmark::kMillisecond);

// Aim: under 20 us with rounding, at the table's largest size.
void Lookup(benchmark::State& state) {
  const int width = static_cast<int>(state.range(0));
  std::vector<PartitionEntry> entries;
  for (int64_t tokens = 1024; tokens <= 131072; tokens += 1024) {
    const std::vector<double> even(width, 1.0 / width);
    entries.push_back({.width = width, .tokens = tokens, .fractions = even});
  }
  const PartitionTable table = PartitionTable::Create(std::move(entries)).value();
  int64_t tokens = 1000;
  for (auto _ : state) {
    benchmark::DoNotOptimize(table.Lookup(tokens, width));
    tokens = tokens % 130000 + 777;
  }
}
BENCHMARK(Lookup)->Arg(2)->Arg(8)->Arg(16);

}  // namespace
}  // namespace runahead

BENCHMARK_MAIN();
