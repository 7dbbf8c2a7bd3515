#include "tests/bench/gpu_timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr int64_t kLeastRounds = 5;
// Waiting for the stream takes some 50 us: half a percent of this.
constexpr double kLeastRun = 0.01;
// The first call allocates and chooses kernels, the second is what a graph is recorded by, the third runs it.
constexpr int kWarmUps = 5;
constexpr int kLeastWarmUps = 2;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

absl::StatusOr<double> Run(Device& device, Stream& stream, const Work& work, int64_t repeats) {
  const double begin = SecondsNow();
  for (int64_t i = 0; i < repeats; ++i) RUNAHEAD_RETURN_IF_ERROR(work());
  RUNAHEAD_RETURN_IF_ERROR(device.Record(stream).Wait());
  return SecondsNow() - begin;
}

// Calls in a run.
absl::StatusOr<int64_t> WarmUp(Device& device, Stream& stream, const Work& work, double seconds) {
  const double begin = SecondsNow();
  double last = 0;
  for (int i = 0; i < kWarmUps; ++i) {
    if (i >= kLeastWarmUps && SecondsNow() - begin > seconds) break;
    RUNAHEAD_ASSIGN_OR_RETURN(last, Run(device, stream, work, 1));
  }
  const double run = std::min(kLeastRun, seconds / kLeastRounds);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(run / last)));
}

}  // namespace

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Timing TimingOf(std::vector<double> seconds, int64_t repeats) {
  Timing timing{Median(seconds), 0, static_cast<int64_t>(seconds.size()), repeats};
  for (double& value : seconds) value = std::abs(value - timing.median_s);
  timing.spread_s = Median(std::move(seconds));
  return timing;
}

absl::StatusOr<std::vector<Timing>> TimeInTurn(Device& device, Stream& stream, double seconds,
                                               absl::Span<const Work> works) {
  std::vector<int64_t> repeats;
  for (const Work& work : works) {
    RUNAHEAD_ASSIGN_OR_RETURN(repeats.emplace_back(), WarmUp(device, stream, work, seconds));
  }
  std::vector<std::vector<double>> runs(works.size());
  const double begin = SecondsNow();
  for (int64_t round = 0; round < kLeastRounds || SecondsNow() - begin < seconds * works.size(); ++round) {
    for (size_t i = 0; i < works.size(); ++i) {
      RUNAHEAD_ASSIGN_OR_RETURN(const double run, Run(device, stream, works[i], repeats[i]));
      runs[i].push_back(run / static_cast<double>(repeats[i]));
    }
  }
  std::vector<Timing> timings;
  for (size_t i = 0; i < works.size(); ++i) timings.push_back(TimingOf(std::move(runs[i]), repeats[i]));
  return timings;
}

absl::StatusOr<Timing> TimeAlone(Device& device, Stream& stream, double seconds, const Work& work) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<Timing> timings, TimeInTurn(device, stream, seconds, {work}));
  return timings[0];
}

}  // namespace runahead
