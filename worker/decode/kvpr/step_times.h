// How long a KVPR step's lanes were busy, and when: for the controller, metrics and traces.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/device.h"
#include "kernels/base/mutex.h"
#include "server/base/span_recorder.h"

namespace runahead {

// kAttend: attention over chunks; kWindow: over what is resident; kLink: copies of KV and X to the device; kSignal: the
// small copies of the host lane; kHost: its attention; kWeights: copies of streamed weights, which share the link with
// kLink's.
enum class StepLane { kProject, kRecompute, kAttend, kWindow, kLink, kStore, kSignal, kHost, kWeights };

// Of one step. Thread-safe.
class StepTimes {
 public:
  struct Span {
    StepLane lane = StepLane::kProject;
    int64_t layer = 0;
    absl::Time begin, end;
  };
  void Add(const Span& span) RUNAHEAD_EXCLUDES(mu_);
  // One that is over when the device has passed `end`; until then all else here leaves it out.
  void Add(StepLane lane, int64_t layer, std::shared_ptr<const TimeMark> begin, std::shared_ptr<const TimeMark> end)
      RUNAHEAD_EXCLUDES(mu_);
  // All of them, once the step's work is done; those of a stream in their order.
  std::vector<Span> spans() const RUNAHEAD_EXCLUDES(mu_);
  // Adds all of them to what is recorded of a request, named as docs/traces.md says.
  void CopyTo(SpanRecorder& recorder) const RUNAHEAD_EXCLUDES(mu_);
  // Seconds for which the lane was busy.
  double Busy(StepLane lane) const RUNAHEAD_EXCLUDES(mu_);
  // Seconds for which the device attended: over chunks and over what is resident.
  double AttendSeconds() const { return Busy(StepLane::kAttend) + Busy(StepLane::kWindow); }
  // Seconds for which anything came over the link: KV and X, weights, or both at once.
  double LinkSeconds() const RUNAHEAD_EXCLUDES(mu_);
  // Seconds that the host lane's q and partials were on their way, waits for copies and threads included: from the end
  // of the projections that make q until the host attends, and from there until the partials are on the device.
  double SignalSeconds() const RUNAHEAD_EXCLUDES(mu_);
  // From the first beginning of a projection to the last end of what the device computed: what it has recomputed
  // before, while the step before ran, was that one's time.
  double DeviceSeconds() const RUNAHEAD_EXCLUDES(mu_);
  // Seconds in which both the link and the device were busy, as a share of what the one takes that takes less: 1 where
  // it is hidden behind the other; 0 where either did nothing.
  double OverlapRatio() const RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Marked {
    StepLane lane;
    int64_t layer;
    std::shared_ptr<const TimeMark> begin, end;
  };
  // Those that are over.
  const std::vector<Span>& Over() const RUNAHEAD_REQUIRES(mu_);
  // When the link was busy, as sorted spans that do not touch.
  std::vector<Span> LinkSpans() const RUNAHEAD_REQUIRES(mu_);

  mutable Mutex mu_;
  mutable std::vector<Span> spans_ RUNAHEAD_GUARDED_BY(mu_);
  mutable std::vector<Marked> marked_ RUNAHEAD_GUARDED_BY(mu_);  // that were not over when somebody asked last
};

// What is enqueued on `stream` while it lives is one span: it begins when the ops before have run. It is timed where
// the stream runs (Device::MarkTime): the stream waits for nothing. Nothing where `times` is null.
class LaneSpan {
 public:
  LaneSpan(Device& device, Stream& stream, std::shared_ptr<StepTimes> times, StepLane lane, int64_t layer);
  ~LaneSpan();
  LaneSpan(const LaneSpan&) = delete;
  LaneSpan& operator=(const LaneSpan&) = delete;

 private:
  Device& device_;
  Stream& stream_;
  const std::shared_ptr<StepTimes> times_;
  const StepLane lane_;
  const int64_t layer_;
  std::shared_ptr<const TimeMark> begin_;
};

}  // namespace runahead
