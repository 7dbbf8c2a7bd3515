// Traces as OpenTelemetry's collectors take them: the JSON form of OTLP, with the names of its conventions for
// generative AI. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "server/router/whole_trace.h"

namespace runahead {

// Of one process; those that took longest stay.
inline constexpr int kMostExportedSpans = 128;

// The elements of `resourceSpans` for one trace, with commas between them: one for each process that has spans. `draw`
// gives ids of spans, which are not 0. Of the request's own span it is the one that workers had as their parent.
std::string OtlpResourceSpans(const WholeTrace& whole, absl::FunctionRef<uint64_t()> draw);

// An ExportTraceServiceRequest of such.
std::string OtlpRequest(const std::vector<std::string>& resource_spans);

}  // namespace runahead
