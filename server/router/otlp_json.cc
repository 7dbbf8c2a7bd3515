#include "server/router/otlp_json.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/base/version.h"

namespace runahead {
namespace {

using OtlpValue = nlohmann::json;

// Of opentelemetry.proto.trace.v1: enums are numbers in this form.
constexpr int kKindInternal = 1, kKindServer = 2;
constexpr int kStatusError = 2;

// What the router calls the span of the whole request.
constexpr char kWholeRequest[] = "request";

// 64-bit numbers are strings in this form.
void Put(OtlpValue& attributes, const char* key, int64_t value) {
  attributes.push_back({{"key", key}, {"value", {{"intValue", absl::StrCat(value)}}}});
}
void Put(OtlpValue& attributes, const char* key, double value) {
  attributes.push_back({{"key", key}, {"value", {{"doubleValue", value}}}});
}
void Put(OtlpValue& attributes, const char* key, const std::string& value) {
  attributes.push_back({{"key", key}, {"value", {{"stringValue", value}}}});
}

// A float as people write it: 0.7, not 0.699999988.
double AsWritten(float value) {
  double written = value;
  (void)absl::SimpleAtod(absl::StrFormat("%.7g", value), &written);
  return written;
}

void PutSampling(OtlpValue& attributes, const v1::SamplingParams& sampling) {
  if (sampling.has_temperature()) Put(attributes, "gen_ai.request.temperature", AsWritten(sampling.temperature()));
  if (sampling.has_top_p()) Put(attributes, "gen_ai.request.top_p", AsWritten(sampling.top_p()));
  if (sampling.has_top_k()) Put(attributes, "gen_ai.request.top_k", static_cast<double>(sampling.top_k()));
  if (sampling.has_frequency_penalty()) {
    Put(attributes, "gen_ai.request.frequency_penalty", AsWritten(sampling.frequency_penalty()));
  }
  if (sampling.has_presence_penalty()) {
    Put(attributes, "gen_ai.request.presence_penalty", AsWritten(sampling.presence_penalty()));
  }
  // What is above the convention's type is left out.
  if (sampling.has_seed() && sampling.seed() <= uint64_t{std::numeric_limits<int64_t>::max()}) {
    Put(attributes, "gen_ai.request.seed", static_cast<int64_t>(sampling.seed()));
  }
}

std::string OperationOf(const TracedRequest& request) {
  return request.chat ? "chat" : "text_completion";
}

OtlpValue AttributesOf(const TracedRequest& request, const std::string& request_id) {
  OtlpValue attributes = OtlpValue::array();
  Put(attributes, "gen_ai.operation.name", OperationOf(request));
  Put(attributes, "gen_ai.provider.name", std::string("runahead"));
  Put(attributes, "gen_ai.request.model", request.model);
  Put(attributes, "gen_ai.response.model", request.served_model);
  Put(attributes, "gen_ai.response.id", request_id);
  if (request.max_tokens > 0) Put(attributes, "gen_ai.request.max_tokens", int64_t{request.max_tokens});
  if (request.answers > 1) Put(attributes, "gen_ai.request.choice.count", int64_t{request.answers});
  PutSampling(attributes, request.sampling);
  Put(attributes, "gen_ai.usage.input_tokens", request.prompt_tokens);
  Put(attributes, "gen_ai.usage.output_tokens", request.generated_tokens);
  if (request.known_tokens > 0) Put(attributes, "gen_ai.usage.cache_read.input_tokens", request.known_tokens);
  if (request.finish_reason != v1::FINISH_REASON_UNSPECIFIED) {
    const char* const reason = request.finish_reason == v1::FINISH_REASON_STOP ? "stop" : "length";
    const OtlpValue reasons = {{"values", OtlpValue::array({{{"stringValue", reason}}})}};
    attributes.push_back({{"key", "gen_ai.response.finish_reasons"}, {"value", {{"arrayValue", reasons}}}});
  }
  if (request.ttft > absl::ZeroDuration()) {
    Put(attributes, "gen_ai.latency.time_to_first_token", absl::ToDoubleSeconds(request.ttft));
  }
  if (request.failovers > 0) Put(attributes, "runahead.failovers", int64_t{request.failovers});
  if (!request.status.ok()) Put(attributes, "error.type", absl::StatusCodeToString(request.status.code()));
  return attributes;
}

// Of a process, but for the whole request's own.
std::vector<const v1::TraceSpan*> Details(const v1::TraceProcess& process, bool of_router) {
  std::vector<const v1::TraceSpan*> spans;
  for (const v1::TraceSpan& span : process.spans()) {
    if (!of_router || span.name() != kWholeRequest) spans.push_back(&span);
  }
  return spans;
}

// Leaves the longest ones, in the order of their begin. How many it leaves out.
int64_t LeaveLongest(std::vector<const v1::TraceSpan*>& spans) {
  const int64_t all = static_cast<int64_t>(spans.size());
  if (all > kMostExportedSpans) {
    std::nth_element(spans.begin(), spans.begin() + kMostExportedSpans, spans.end(),
                     [](const auto* a, const auto* b) { return a->duration_ns() > b->duration_ns(); });
    spans.resize(kMostExportedSpans);
  }
  std::stable_sort(spans.begin(), spans.end(),
                   [](const auto* a, const auto* b) { return a->start_ns() < b->start_ns(); });
  return all - static_cast<int64_t>(spans.size());
}

// Since the request's arrival.
struct OtlpTimes {
  int64_t begin_ns = 0, end_ns = 0;
};

// From the first begin to the last end.
OtlpTimes Around(const v1::TraceProcess& process) {
  OtlpTimes times{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
  for (const v1::TraceSpan& span : process.spans()) {
    times.begin_ns = std::min(times.begin_ns, span.start_ns());
    times.end_ns = std::max(times.end_ns, span.start_ns() + span.duration_ns());
  }
  return times;
}

class OtlpWriter {
 public:
  OtlpWriter(const WholeTrace& whole, absl::FunctionRef<uint64_t()> draw)
      : whole_(whole),
        draw_(draw),
        arrival_ns_(whole.arrival_ns + absl::ToInt64Nanoseconds(whole.request.wall_ahead)) {}

  std::string Write() {
    std::vector<std::string> elements;
    for (int i = 0; i < whole_.trace.processes_size(); ++i) {
      const v1::TraceProcess& process = whole_.trace.processes(i);
      if (process.spans().empty()) continue;
      const OtlpValue of_scope = {{"scope", ScopeOf()}, {"spans", SpansOf(process, i == 0)}};
      const OtlpValue element = {{"resource", ResourceOf(process, whole_.services[i])},
                                 {"scopeSpans", OtlpValue::array({of_scope})}};
      // Names that are no UTF-8 must not throw.
      elements.push_back(element.dump(-1, ' ', false, OtlpValue::error_handler_t::replace));
    }
    return absl::StrJoin(elements, ",");
  }

 private:
  static OtlpValue ScopeOf() { return {{"name", "runahead"}, {"version", std::string(Version())}}; }

  static OtlpValue ResourceOf(const v1::TraceProcess& process, const std::string& service) {
    OtlpValue attributes = OtlpValue::array();
    Put(attributes, "service.name", service);
    Put(attributes, "service.instance.id", process.name());
    Put(attributes, "service.version", std::string(Version()));
    return {{"attributes", attributes}};
  }

  OtlpValue SpanOf(const std::string& name, const std::string& id, const std::string& parent, int kind,
                   const OtlpTimes& times, OtlpValue attributes) const {
    OtlpValue span = {{"traceId", whole_.trace.trace_id()},
                      {"spanId", id},
                      {"name", name},
                      {"kind", kind},
                      {"startTimeUnixNano", absl::StrCat(arrival_ns_ + times.begin_ns)},
                      {"endTimeUnixNano", absl::StrCat(arrival_ns_ + std::max(times.begin_ns, times.end_ns))},
                      {"attributes", std::move(attributes)}};
    if (!parent.empty()) span["parentSpanId"] = parent;
    return span;
  }

  // The process's own span, and below it what it did.
  OtlpValue SpansOf(const v1::TraceProcess& process, bool of_router) {
    std::vector<const v1::TraceSpan*> details = Details(process, of_router);
    const int64_t left_out = LeaveLongest(details) + process.dropped() + (of_router ? OfAbsent() : 0);
    const std::string id = of_router ? whole_.span.span_id : absl::StrFormat("%016x", draw_());
    OtlpValue spans = OtlpValue::array({of_router ? Request(process, left_out) : Worker(process, id, left_out)});
    for (const v1::TraceSpan* span : details) {
      OtlpValue attributes = OtlpValue::array();
      if (span->layer() >= 0) Put(attributes, "runahead.layer", int64_t{span->layer()});
      if (span->amount() != 0) Put(attributes, "runahead.amount", int64_t{span->amount()});
      spans.push_back(SpanOf(span->name(), absl::StrFormat("%016x", draw_()), id, kKindInternal,
                             {span->start_ns(), span->start_ns() + span->duration_ns()}, std::move(attributes)));
    }
    return spans;
  }

  OtlpValue Request(const v1::TraceProcess& router, int64_t left_out) const {
    const TracedRequest& request = whole_.request;
    OtlpTimes times = Around(router);
    for (const v1::TraceSpan& span : router.spans()) {
      if (span.name() == kWholeRequest) times = {span.start_ns(), span.start_ns() + span.duration_ns()};
    }
    OtlpValue attributes = AttributesOf(request, whole_.trace.request_id());
    if (left_out > 0) Put(attributes, "runahead.spans_left_out", left_out);
    OtlpValue span = SpanOf(absl::StrCat(OperationOf(request), " ", request.model), whole_.span.span_id,
                            whole_.parent_span_id, kKindServer, times, std::move(attributes));
    // Without its message, which may quote the prompt: a template's own error does. error.type says its kind.
    if (!request.status.ok()) span["status"] = {{"code", kStatusError}};
    return span;
  }

  OtlpValue Worker(const v1::TraceProcess& process, const std::string& id, int64_t left_out) const {
    OtlpValue attributes = OtlpValue::array();
    Put(attributes, "runahead.clock_error_ns", process.clock_error_ns());
    if (left_out > 0) Put(attributes, "runahead.spans_left_out", left_out);
    return SpanOf(process.name(), id, whole_.span.span_id, kKindServer, Around(process), std::move(attributes));
  }

  // What workers dropped of which no span is there.
  int64_t OfAbsent() const {
    int64_t left_out = 0;
    for (const v1::TraceProcess& process : whole_.trace.processes()) {
      if (process.spans().empty()) left_out += process.dropped();
    }
    return left_out;
  }

  const WholeTrace& whole_;
  const absl::FunctionRef<uint64_t()> draw_;
  const int64_t arrival_ns_;  // since 1970, of the time of day
};

}  // namespace

std::string OtlpResourceSpans(const WholeTrace& whole, absl::FunctionRef<uint64_t()> draw) {
  return OtlpWriter(whole, draw).Write();
}

std::string OtlpRequest(const std::vector<std::string>& resource_spans) {
  return absl::StrCat("{\"resourceSpans\":[", absl::StrJoin(resource_spans, ","), "]}");
}

}  // namespace runahead
