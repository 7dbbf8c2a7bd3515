// W3C Trace Context: to which trace a request belongs, as the header `traceparent` says it. Pure, but for NewSpan.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace runahead {

// The name of the header, and of gRPC's metadata.
inline constexpr char kTraceparent[] = "traceparent";

struct TraceContext {
  std::string trace_id;  // 32 hexadecimal digits, in lower case, not all 0
  std::string span_id;   // 16, likewise: of whoever calls
  bool sampled = false;  // the caller records its part
};

// Nothing where `header` is not what the standard allows: then it is as if there were none. Of a version that came
// after the one known here (00), what that one has is read.
std::optional<TraceContext> ParseTraceparent(absl::string_view header);

// The header of version 00.
std::string Traceparent(const TraceContext& context);

// A new span, drawn at random, of the trace of `parent`, or of a new one.
TraceContext NewSpan(const std::optional<TraceContext>& parent, bool sampled);

}  // namespace runahead
