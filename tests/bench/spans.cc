// What it costs to record a span (docs/traces.md): the two looks at the clock and the recorder; and what it costs on a
// stream of the CPU's device, where a span of compute needs a call for each of its ends.
#include <memory>

#include "benchmark/benchmark.h"
#include "kernels/base/monotonic.h"
#include "kernels/cpu/cpu_device.h"
#include "server/base/span_recorder.h"

namespace runahead {
namespace {

void AddSpan(benchmark::State& state) {
  auto recorder = std::make_unique<SpanRecorder>();
  int64_t added = 0;
  for (auto _ : state) {
    const absl::Time begin = MonotonicNow();
    recorder->Add("qkv", added, begin, MonotonicNow(), 64);
    if (++added % static_cast<int64_t>(SpanRecorder::kMost) == 0) {
      state.PauseTiming();
      recorder = std::make_unique<SpanRecorder>();
      state.ResumeTiming();
    }
  }
}
BENCHMARK(AddSpan);

// As a loop does it: enqueued ahead, a layer's five points in a row.
void PointOnAStream(benchmark::State& state) {
  const std::shared_ptr<Device> device = *NewCpuDevice({.threads = 1});
  const std::unique_ptr<Stream> stream = device->NewStream("bench");
  constexpr int kLayer = 5;
  for (auto _ : state) {
    SpanRecorder recorder;
    absl::Time last;
    for (int i = 0; i < kLayer; ++i) {
      device->Call(*stream, [&] {
        const absl::Time now = MonotonicNow();
        recorder.Add("qkv", 0, last, now, 64);
        last = now;
      });
    }
    device->Record(*stream).Wait().IgnoreError();
  }
  state.SetItemsProcessed(state.iterations() * kLayer);
}
BENCHMARK(PointOnAStream)->UseRealTime();

// The same without the points.
void AnEmptyStream(benchmark::State& state) {
  const std::shared_ptr<Device> device = *NewCpuDevice({.threads = 1});
  const std::unique_ptr<Stream> stream = device->NewStream("bench");
  for (auto _ : state) device->Record(*stream).Wait().IgnoreError();
}
BENCHMARK(AnEmptyStream)->UseRealTime();

}  // namespace
}  // namespace runahead

BENCHMARK_MAIN();
