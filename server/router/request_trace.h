// What is recorded of one request, from all processes, on the router's clock.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/worker.pb.h"
#include "server/base/trace_context.h"
#include "server/router/clock_offset.h"

namespace runahead {

// Thread-safe. Held by all who have something to add; when the last of them lets go, it is whole.
class RequestTrace {
 public:
  using Keep = std::function<void(v1::Trace)>;

  // `span` is the router's own. `keep` is called when the trace is destroyed, with all of it.
  RequestTrace(std::string request_id, TraceContext span, absl::Time arrival, Keep keep);
  ~RequestTrace();
  RequestTrace(const RequestTrace&) = delete;
  RequestTrace& operator=(const RequestTrace&) = delete;

  const std::string& trace_id() const { return span_.trace_id; }
  // What workers are sent, who then record their part.
  std::string traceparent() const { return Traceparent(span_); }

  // Of the router itself.
  void Add(absl::string_view name, absl::Time begin, absl::Time end, int64_t amount = 0) RUNAHEAD_EXCLUDES(mu_);
  // What a worker sent at `now`, when its clock was ahead of the router's by `clock`. Without that its spans cannot be
  // placed: they count as dropped.
  void AddWorker(const std::string& name, const v1::TraceSpans& spans, const PeerClock& clock, absl::Time now)
      RUNAHEAD_EXCLUDES(mu_);

 private:
  v1::TraceProcess& ProcessOf(const std::string& name) RUNAHEAD_REQUIRES(mu_);

  const TraceContext span_;
  const int64_t arrival_ns_;
  const Keep keep_;
  Mutex mu_;
  v1::Trace trace_ RUNAHEAD_GUARDED_BY(mu_);  // the router is its first process
};

}  // namespace runahead
