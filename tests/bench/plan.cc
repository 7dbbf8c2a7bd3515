// What planning costs: one simulation, and a search as `runahead plan` makes it. (What every request pays: lookup.cc.)
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

}  // namespace
}  // namespace runahead

BENCHMARK_MAIN();
