// What planning costs: one simulation, a search as `runahead plan` makes it, and what the router does for each request
// of a long line, and how long news of a worker takes while 1,000 wait. (What every request pays for its partition:
// lookup.cc.)
// One thread but for the last; the model is Llama-7B on A100s as fitted in
// tests/scheduler/partition/paper_figures_test.cc.
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "scheduler/partition/chain_simulator.h"
#include "scheduler/partition/partition_search.h"
#include "scheduler/partition/partition_table.h"
#include "scheduler/placement/chain_plan.h"
#include "server/router/fleet_queue.h"
#include "server/task/run_here.h"

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
  for (auto _ : state) benchmark::DoNotOptimize(SimulateChain(model, Schedule::kKvr, parts));
}
BENCHMARK(Simulate)->Args({1, 16384})->Args({4, 16384})->Args({8, 16384})->Args({16, 16384});

// Aim: 8 workers at 16k in under 2 s.
void Search(benchmark::State& state) {
  const CostModel model = Llama7B();
  const SearchObjective objective = ObjectiveOf([&](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
    return SimulateChain(model, Schedule::kKvr, parts)->ttft_s;
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

// 1,024 workers of unequal memory, one edge of twenty broken: all have as many jobs as they may, or half of them, in
// fragments of 1 to 8, have a place.
std::vector<WorkerView> LongLine(bool fragments) {
  constexpr size_t kWorkers = 1024;
  std::mt19937 random(7);
  std::uniform_real_distribution<double> even;
  std::vector<WorkerView> line(kWorkers);
  bool free = false;
  for (size_t i = 0, left = 0; i < kWorkers; ++i, --left) {
    if (left == 0) {
      left = 1 + random() % 8;
      free = fragments && !free;
    }
    line[i].ready = true;
    line[i].unfinished_jobs = free ? static_cast<int>(random() % kMaxUnfinishedJobs) : kMaxUnfinishedJobs;
    line[i].max_prefix_tokens = 4096 + static_cast<int64_t>(random() % 32768);
    line[i].backlog_s = line[i].unfinished_jobs * even(random);
    line[i].place_s = free ? 0 : line[i].backlog_s / 2;
    line[i].linked_to_next = even(random) >= 0.05;
  }
  return line;
}

// Widths 1 to 16.
PartitionTable TimedTable() {
  std::vector<PartitionEntry> entries;
  for (int width = 1; width <= 16; ++width) {
    for (const int64_t tokens : {1024, 4096, 16384}) {
      const double seconds = 1e-4 * static_cast<double>(tokens) / width + 0.01 * width;
      entries.push_back({width, tokens, std::vector<double>(width, 1.0 / width), seconds});
    }
  }
  return *PartitionTable::Create(entries);
}

// Aim: 200 us. Arguments: whether half of the line has a place; whether the table knows times. 1,000 wait behind.
void Plan(benchmark::State& state) {
  const std::vector<WorkerView> line = LongLine(state.range(0) != 0);
  const PartitionTable table = state.range(1) != 0 ? TimedTable() : PartitionTable();
  const ChainRequest request{.tokens = 16000, .parts = {}};
  const QueueLoad queue{.waiting = 1000, .arrivals_per_s = 50};
  size_t width = 0;
  for (auto _ : state) {
    const absl::StatusOr<ChainPlan> plan = PlanChain(request, table, line, queue);
    benchmark::DoNotOptimize(width = plan.ok() ? plan->parts.size() : 0);
  }
  state.counters["width"] = static_cast<double>(width);
}
BENCHMARK(Plan)->ArgNames({"free", "timed"})->ArgsProduct({{0, 1}, {0, 1}})->Unit(benchmark::kMicrosecond);

// One of 1,024 prefill workers reports that a prompt has ended there, while 1,000 requests wait for a place that none
// can take: what a thread that reads reports is held up by. The oldest plans anew each time, on a thread of its own.
// Argument: decode workers besides, the first of which nobody reaches.
void News(benchmark::State& state) {
  constexpr int kWorkers = 1024, kWaiting = 1000;
  const int decode = static_cast<int>(state.range(0));
  MetricRegistry registry("none");
  RouterMetrics metrics(registry, "tiny");
  std::vector<WorkerSpec> specs;
  for (int i = 0; i < kWorkers; ++i) specs.push_back({"prefill", absl::StrCat("a:", i)});
  for (int i = 0; i < decode; ++i) specs.push_back({"decode", absl::StrCat("b:", i)});
  Fleet fleet(specs, metrics, RealClock());
  FleetQueue queue(fleet, kWaiting, metrics, RealClock());
  std::shared_ptr<LiveWorker> worker;
  for (int i = kWorkers + decode - 1; i >= 0; --i) {  // the last is a prefill worker
    worker = std::make_shared<LiveWorker>();
    worker->index = i;
    worker->capabilities.set_max_prefix_tokens(32768);
    fleet.SetReady(worker);
  }
  BrokenPaths broken;
  for (int i = 0; decode > 0 && i < kWorkers; ++i) broken.handoffs.insert({i, kWorkers});
  fleet.SetBroken(broken);
  const ChainRequest request{.tokens = 16000, .parts = {}};
  const auto acquire = [&](CancelToken& cancel) {
    const FleetQueue::Ticket ticket(queue);
    return RunHere(queue.Acquire(ticket, request, PartitionTable(), cancel, absl::InfiniteFuture(), std::nullopt))
        .status();
  };
  CancelToken cancel;
  for (int i = 0; i < kMaxUnfinishedJobs * kWorkers / kMostUntimedWorkers; ++i) acquire(cancel).IgnoreError();
  std::vector<std::thread> threads;
  for (int i = 0; i < kWaiting; ++i) {
    threads.emplace_back([&] {
      while (absl::IsResourceExhausted(acquire(cancel))) {  // the place in the queue by which it is seen to be full
      }
    });
  }
  for (auto since = queue.EnterQueue(); since.ok(); since = queue.EnterQueue()) {
    queue.LeaveQueue(*since);
    std::this_thread::yield();
  }
  constexpr uint64_t kUnknown = ~uint64_t{0};
  for (auto _ : state) fleet.FinishJob(*worker, kUnknown);
  cancel.Cancel(absl::CancelledError("the end"));
  for (std::thread& thread : threads) thread.join();
}
BENCHMARK(News)->ArgName("decode")->Arg(0)->Arg(512)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace runahead

BENCHMARK_MAIN();
