// What becomes of the points of one job: a test's sink hears of them, and where the job is traced they become spans.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "server/base/span_recorder.h"
#include "worker/link/wire_time.h"
#include "worker/prefill/job.h"
#include "worker/prefill/trace.h"

namespace runahead {

// docs/traces.md names the spans. The compute stream calls Ran, in its order, and after it the stage's thread does
// once; all else may be called on any thread.
class JobTrace {
 public:
  // Null where nobody listens: `sink` is null and the job is not traced. `sink` outlives what is made.
  static std::shared_ptr<JobTrace> Of(const PrefillJob& job, TraceSink* sink);

  // Unix nanoseconds of MonotonicNow(); 0: not yet.
  using Moment = std::shared_ptr<std::atomic<int64_t>>;
  // Something on its way to another worker, or from it.
  struct Transfer {
    int64_t layer = 0;
    TracePoint point = TracePoint::kSent;  // its end
    size_t bytes = 0;
    Moment ready;                          // when the own part was there; null for what is another's
    std::shared_ptr<const WireTime> wire;  // of what is another's; null: it came over no wire, and has no span
  };

  void Posted(int64_t layer, TracePoint point) const;
  // What was enqueued before has run.
  void Ran(int64_t layer, TracePoint point);
  void Moved(const Transfer& transfer) const;
  // The device stood idle for want of KV of other parts.
  void Waited(int64_t layer, absl::Time begin, absl::Time end) const;

 private:
  JobTrace(const PrefillJob& job, TraceSink* sink);

  const JobId job_;
  const int64_t tokens_;
  TraceSink* const sink_;
  const std::shared_ptr<SpanRecorder> spans_;
  // Of the last point that ran.
  TracePoint last_ = TracePoint::kQkvBegin;
  absl::Time at_;
};

}  // namespace runahead
