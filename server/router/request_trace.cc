#include "server/router/request_trace.h"

#include <algorithm>
#include <utility>

namespace runahead {

RequestTrace::RequestTrace(std::string request_id, TraceContext span, absl::Time arrival, Keep keep)
    : span_(std::move(span)), arrival_ns_(absl::ToUnixNanos(arrival)), keep_(std::move(keep)) {
  trace_.set_request_id(std::move(request_id));
  trace_.set_trace_id(span_.trace_id);
  trace_.add_processes()->set_name("router");
}

RequestTrace::~RequestTrace() {
  MutexLock lock(mu_);
  keep_(std::move(trace_));
}

void RequestTrace::Add(absl::string_view name, absl::Time begin, absl::Time end, int64_t amount) {
  MutexLock lock(mu_);
  v1::TraceSpan& span = *trace_.mutable_processes(0)->add_spans();
  span.set_name(std::string(name));
  span.set_layer(-1);
  span.set_start_ns(absl::ToUnixNanos(begin) - arrival_ns_);
  span.set_duration_ns(absl::ToInt64Nanoseconds(end - begin));
  span.set_amount(amount);
}

void RequestTrace::AddWorker(const std::string& name, const v1::TraceSpans& spans, const PeerClock& clock,
                             absl::Time now) {
  const std::optional<ClockOffset::Estimate> ahead = clock.At(now);
  MutexLock lock(mu_);
  v1::TraceProcess& process = ProcessOf(name);
  process.set_dropped(process.dropped() + spans.dropped());
  if (!ahead) {
    process.set_dropped(process.dropped() + spans.spans_size());
    return;
  }
  // Spans are up to as much older than the estimate as the request is.
  const int64_t error = ahead->error + ClockOffset::DriftIn(absl::ToUnixNanos(now) - arrival_ns_);
  process.set_clock_error_ns(std::max(process.clock_error_ns(), error));
  for (const v1::TraceSpan& span : spans.spans()) {
    v1::TraceSpan& placed = *process.add_spans();
    placed = span;
    placed.set_start_ns(span.start_ns() - ahead->offset - arrival_ns_);
  }
}

// A worker of both roles has sent spans twice.
v1::TraceProcess& RequestTrace::ProcessOf(const std::string& name) {
  for (int i = 1; i < trace_.processes_size(); ++i) {
    if (trace_.processes(i).name() == name) return *trace_.mutable_processes(i);
  }
  v1::TraceProcess& process = *trace_.add_processes();
  process.set_name(name);
  return process;
}

}  // namespace runahead
