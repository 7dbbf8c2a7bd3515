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
#include "server/router/whole_trace.h"

namespace runahead {

// Thread-safe. Held by all who have something to add; when the last of them lets go, it is whole.
class RequestTrace {
 public:
  using Keep = std::function<void(WholeTrace)>;

  // `span` is the router's own, `caller` the one that the request came from, where it says one. `keep` is called when
  // the trace is destroyed, with all of it.
  RequestTrace(std::string request_id, TraceContext span, const std::optional<TraceContext>& caller, absl::Time arrival,
               Keep keep);
  ~RequestTrace();
  RequestTrace(const RequestTrace&) = delete;
  RequestTrace& operator=(const RequestTrace&) = delete;

  const std::string& trace_id() const { return trace_id_; }
  // What workers are sent, who then record their part.
  const std::string& traceparent() const { return traceparent_; }

  // Of the router itself.
  void Add(absl::string_view name, absl::Time begin, absl::Time end, int64_t amount = 0) RUNAHEAD_EXCLUDES(mu_);
  // What a worker sent at `now`, when its clock was ahead of the router's by `clock`. Without that its spans cannot be
  // placed: they count as dropped.
  void AddWorker(const v1::Capabilities& worker, const v1::TraceSpans& spans, const PeerClock& clock, absl::Time now)
      RUNAHEAD_EXCLUDES(mu_);
  // Of the request, at its end.
  void Describe(TracedRequest request) RUNAHEAD_EXCLUDES(mu_);

 private:
  v1::TraceProcess& ProcessOf(const v1::Capabilities& worker) RUNAHEAD_REQUIRES(mu_);

  const std::string trace_id_, traceparent_;
  const int64_t arrival_ns_;
  const Keep keep_;
  Mutex mu_;
  WholeTrace whole_ RUNAHEAD_GUARDED_BY(mu_);  // the router is its first process
};

}  // namespace runahead
