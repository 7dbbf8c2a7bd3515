#include "server/router/request_trace.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"

namespace runahead {
namespace {

std::string ServiceOf(const v1::Capabilities& worker) {
  const bool prefills = absl::c_linear_search(worker.roles(), v1::WORKER_ROLE_PREFILL);
  const bool decodes = absl::c_linear_search(worker.roles(), v1::WORKER_ROLE_DECODE);
  if (prefills == decodes) return "runahead-worker";
  return prefills ? "runahead-prefill" : "runahead-decode";
}

}  // namespace

RequestTrace::RequestTrace(std::string request_id, TraceContext span, const std::optional<TraceContext>& caller,
                           absl::Time arrival, Keep keep)
    : trace_id_(span.trace_id),
      traceparent_(Traceparent(span)),
      arrival_ns_(absl::ToUnixNanos(arrival)),
      keep_(std::move(keep)) {
  whole_.trace.set_request_id(std::move(request_id));
  whole_.trace.set_trace_id(span.trace_id);
  whole_.trace.add_processes()->set_name("router");
  whole_.services = {"runahead-router"};
  whole_.span = std::move(span);
  if (caller) whole_.parent_span_id = caller->span_id;
  whole_.arrival_ns = arrival_ns_;
}

RequestTrace::~RequestTrace() {
  MutexLock lock(mu_);
  keep_(std::move(whole_));
}

void RequestTrace::Add(absl::string_view name, absl::Time begin, absl::Time end, int64_t amount) {
  MutexLock lock(mu_);
  v1::TraceSpan& span = *whole_.trace.mutable_processes(0)->add_spans();
  span.set_name(std::string(name));
  span.set_layer(-1);
  span.set_start_ns(absl::ToUnixNanos(begin) - arrival_ns_);
  span.set_duration_ns(absl::ToInt64Nanoseconds(end - begin));
  span.set_amount(amount);
}

void RequestTrace::AddWorker(const v1::Capabilities& worker, const v1::TraceSpans& spans, const PeerClock& clock,
                             absl::Time now) {
  const std::optional<ClockOffset::Estimate> ahead = clock.At(now);
  MutexLock lock(mu_);
  v1::TraceProcess& process = ProcessOf(worker);
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

void RequestTrace::Describe(TracedRequest request) {
  MutexLock lock(mu_);
  whole_.request = std::move(request);
}

// A worker of both roles has sent spans twice.
v1::TraceProcess& RequestTrace::ProcessOf(const v1::Capabilities& worker) {
  v1::Trace& trace = whole_.trace;
  for (int i = 1; i < trace.processes_size(); ++i) {
    if (trace.processes(i).name() == worker.name()) return *trace.mutable_processes(i);
  }
  v1::TraceProcess& process = *trace.add_processes();
  process.set_name(worker.name());
  whole_.services.push_back(ServiceOf(worker));
  return process;
}

}  // namespace runahead
