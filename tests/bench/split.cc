// What a decode step pays for its plan: the solver for a batch, the tiers, and the controller. Aim: a batch of 256 in
// under 100 microseconds. One thread; a model of hidden 4,096 with or without grouped heads, lengths up to 32,768.
#include <random>
#include <vector>

#include "absl/time/time.h"
#include "benchmark/benchmark.h"
#include "scheduler/recompute/split_controller.h"
#include "scheduler/recompute/tier_plan.h"

namespace runahead {
namespace {

LaneCosts CostsOf(bool grouped) {
  LaneCosts costs;
  costs.link_bytes_per_s = 53e9;
  costs.x_bytes = 8192;
  costs.kv_bytes = grouped ? 4096 : 16384;
  costs.recompute_s = 0.1e-6;
  costs.project_s = 120e-6;
  costs.attend_s = costs.kv_bytes / 3.35e12;
  costs.signal_s = 30e-6;
  costs.host_attend_s = costs.kv_bytes / 200e9;
  costs.host_bytes_per_s = 220e9;
  return costs;
}

std::vector<LaneShape> RaggedBatch(int64_t batch) {
  std::mt19937 random(3);
  std::vector<LaneShape> shapes(batch);
  for (LaneShape& shape : shapes) {
    shape.length = 1000 + static_cast<int64_t>(random() % 31768);
    shape.x_stored = shape.length;
    shape.piece_tokens = shape.length > 16384 ? 512 : 256;
    shape.resident_from = shape.length - 700;
    shape.x_resident = 256;
  }
  return shapes;
}

// Arguments of all: batch, whether heads are grouped.
void SolveBatch(benchmark::State& state) {
  const LaneCosts costs = CostsOf(state.range(1) != 0);
  const std::vector<LaneShape> shapes = RaggedBatch(state.range(0));
  LaneRows rows;
  for (auto _ : state) rows = SolveLanes(SplitObjective::kStep, costs, shapes)->rows;
  state.counters["recomputed"] = static_cast<double>(rows.recomputed);
  state.counters["host"] = static_cast<double>(rows.host);
}
BENCHMARK(SolveBatch)->ArgsProduct({{1, 32, 256}, {0, 1}})->Unit(benchmark::kMicrosecond);

void PlanAndObserve(benchmark::State& state) {
  SplitController controller = *SplitController::Create(SplitObjective::kStep, CostsOf(state.range(1) != 0));
  const std::vector<LaneShape> shapes = RaggedBatch(state.range(0));
  for (auto _ : state) {
    const LanePlan plan = *controller.Plan(shapes, absl::UnixEpoch());
    controller.Observe(plan, {.link_s = plan.times.link_s, .layer_s = plan.times.layer_s});
  }
}
BENCHMARK(PlanAndObserve)->ArgsProduct({{256}, {0, 1}})->Unit(benchmark::kMicrosecond);

void Tiers(benchmark::State& state) {
  const LaneCosts costs = CostsOf(state.range(1) != 0);
  const std::vector<LaneShape> shapes = RaggedBatch(state.range(0));
  const TierBudget budget{
      .bytes = int64_t{40} << 30, .layers = 32, .kv_bytes = costs.kv_bytes, .x_bytes = costs.x_bytes};
  for (auto _ : state) benchmark::DoNotOptimize(PlanTiers(SplitObjective::kStep, costs, budget, shapes));
}
BENCHMARK(Tiers)->ArgsProduct({{32, 256}, {0, 1}})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace runahead

BENCHMARK_MAIN();
