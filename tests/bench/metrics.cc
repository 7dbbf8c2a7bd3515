// What metrics and the log cost: one observation, all that a router and a prefill worker observe of a request, a
// scrape, the request's line of the log. Each request is run turn about with the same loop without observations
// ("nothing"), so that what is left is theirs. Lines go to stderr: send it to /dev/null.
#include "server/base/metrics.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "benchmark/benchmark.h"
#include "server/base/logging.h"
#include "server/router/request_log.h"
#include "server/router/router_metrics.h"
#include "worker/metrics/link_metrics.h"
#include "worker/metrics/prefill_metrics.h"

namespace runahead {
namespace {

constexpr int kGenerated = 64;  // tokens of the request
constexpr int kLayers = 30;     // of the quick start's model: frames and slices of a prefill

MetricRegistry& Registry() {
  static auto* const registry = new MetricRegistry("none");
  return *registry;
}
RouterMetrics& Router() {
  static auto* const router = new RouterMetrics(Registry(), "model");
  return *router;
}

void CounterIncrement(benchmark::State& state) {
  Counter& counter = Registry().AddCounter("bench_total", "x");
  for (auto _ : state) counter.Increment();
}
void GaugeSet(benchmark::State& state) {
  Gauge& gauge = Registry().AddGauge("bench", "x");
  for (auto _ : state) gauge.Set(1);
}
void HistogramObserve(benchmark::State& state) {
  Histogram& histogram = Registry().AddHistogram("bench_seconds", "x", TtftBuckets());
  double value = 0.001;
  for (auto _ : state) histogram.Observe(value = value < 30 ? value * 1.7 : 0.001);
}
BENCHMARK(CounterIncrement)->ThreadRange(1, 2);
BENCHMARK(GaugeSet)->ThreadRange(1, 2);
BENCHMARK(HistogramObserve)->ThreadRange(1, 2);

// What Session and the fleet observe until the first token: `observe` false walks the same loops and observes nothing.
void UntilFirstToken(RouterMetrics& metrics, bool observe) {
  if (observe) {
    metrics.CallBegan();
    metrics.SetQueue({0, 1, 0, 0, 0}, 0);
    metrics.SetQueue({}, 0);
    metrics.CountPartitionLookup(PartitionLookup::kEven);
    metrics.CountPromptTokens(512);
    metrics.CountGeneratedTokens(1);
    metrics.ObserveTimeToFirstToken(512, 2, absl::Milliseconds(120));
  }
  for (int stage = 0; stage < kTtftStages; ++stage) {
    absl::Duration spent = absl::Milliseconds(stage);
    benchmark::DoNotOptimize(spent);
    if (observe) metrics.ObserveTtftStage(static_cast<TtftStage>(stage), 2, spent);
  }
}
void AfterFirstToken(RouterMetrics& metrics, bool observe) {
  for (int token = 1; token < kGenerated; ++token) {
    absl::Duration between = absl::Milliseconds(7);
    benchmark::DoNotOptimize(between);
    if (!observe) continue;
    metrics.ObserveInterTokenLatency(between);
    metrics.CountGeneratedTokens(1);
  }
  if (!observe) return;
  metrics.ObserveTimePerOutputToken(absl::Milliseconds(7));
  metrics.RequestFinished(absl::StatusCode::kOk, absl::Seconds(1));
  metrics.CallEnded();
}
void RouterUntilFirstToken(benchmark::State& state) {
  for (auto _ : state) UntilFirstToken(Router(), state.range(0) != 0);
}
void RouterAfterFirstToken(benchmark::State& state) {
  for (auto _ : state) AfterFirstToken(Router(), state.range(0) != 0);
}

// A worker in the middle of a chain: of each layer a frame received, two sent (its own and the one that it passes on),
// a slice handed off; and of the job its times.
void PrefillJobOfWorker(benchmark::State& state) {
  static auto* const prefill = new PrefillMetrics(Registry());
  static auto* const before = new LinkMetrics(Registry(), "prefill-0");
  static auto* const after = new LinkMetrics(Registry(), "prefill-2");
  const bool observe = state.range(0) != 0;
  for (auto _ : state) {
    for (int layer = 0; layer < kLayers; ++layer) {
      absl::Duration took = absl::Milliseconds(2);
      benchmark::DoNotOptimize(took);
      if (!observe) continue;
      before->ObserveReceive(1 << 18, took);
      after->ObserveSend(1 << 18, took);
      after->ObserveSend(1 << 18, took);
      prefill->ObserveHandoff(took);
      prefill->CountHandoffBytes(HandoffKind::kKv, 1 << 18);
      prefill->SetBufferBytes(layer);
    }
    if (!observe) continue;
    prefill->ObserveCompute(1, absl::Milliseconds(100));
    prefill->ObserveWait(1, absl::Milliseconds(1));
    prefill->ObserveTransfer(1, absl::Milliseconds(20), absl::Milliseconds(19));
    prefill->SetImbalance(1.01);
    prefill->ObserveRingStall(absl::ZeroDuration());
    prefill->CountTokens(256);
  }
}
// 0: nothing; 1: observed. Random interleaving runs them turn about (--benchmark_enable_random_interleaving).
BENCHMARK(RouterUntilFirstToken)->Arg(0)->Arg(1);
BENCHMARK(RouterAfterFirstToken)->Arg(0)->Arg(1);
BENCHMARK(PrefillJobOfWorker)->Arg(0)->Arg(1);

void ScrapeOfRouter(benchmark::State& state) {
  Router();
  for (auto _ : state) benchmark::DoNotOptimize(Registry().Serialize());
}
BENCHMARK(ScrapeOfRouter)->Unit(benchmark::kMicrosecond);

// 0: as text, 1: as JSON, 2: the level is off.
void RequestLine(benchmark::State& state) {
  InitLogging("router", state.range(0) == 2 ? LogLevel::kWarning : LogLevel::kInfo,
              state.range(0) == 1 ? LogFormat::kJson : LogFormat::kText);
  RequestRecord record;
  record.request_id = "0123456789abcdef";
  record.plan.set_schedule("kvr");
  record.plan.set_decode_worker("decode-0");
  for (const char* const worker : {"prefill-0", "prefill-1"}) {
    record.plan.add_workers(worker);
    record.plan.add_parts(256);
  }
  record.finish_reason = v1::FINISH_REASON_STOP;
  for (int stage = 0; stage < kTtftStages; ++stage) {
    record.stages.emplace_back(TtftStageName(static_cast<TtftStage>(stage)), 0.0123);
  }
  record.ttft = record.tpot = record.total = absl::Milliseconds(120);
  for (auto _ : state) LogRequest(record);
}
BENCHMARK(RequestLine)->Arg(0)->Arg(1)->Arg(2);

}  // namespace
}  // namespace runahead

BENCHMARK_MAIN();
