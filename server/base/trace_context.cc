#include "server/base/trace_context.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/base/random.h"

namespace runahead {
namespace {

// version-trace-parent-flags: 2, 32, 16 and 2 digits.
constexpr size_t kTraceAt = 3, kSpanAt = 36, kFlagsAt = 53, kEnd = 55;

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsId(absl::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != absl::string_view::npos;
}

std::string RandomId() {
  return absl::StrFormat("%016x", RandomBits64());  // never 0
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(absl::string_view header) {
  if (header.size() < kEnd) return std::nullopt;
  const absl::string_view version = header.substr(0, 2), flags = header.substr(kFlagsAt, 2);
  if (!IsHex(version) || version == "ff" || !IsHex(flags)) return std::nullopt;
  // Only later versions may say more, after another dash.
  if (header.size() > kEnd && (version == "00" || header[kEnd] != '-')) return std::nullopt;
  for (const size_t dash : {kTraceAt, kSpanAt, kFlagsAt}) {
    if (header[dash - 1] != '-') return std::nullopt;
  }
  const absl::string_view trace = header.substr(kTraceAt, 32), span = header.substr(kSpanAt, 16);
  if (!IsId(trace) || !IsId(span)) return std::nullopt;
  const char low = flags[1];
  const int digit = low <= '9' ? low - '0' : low - 'a' + 10;
  return TraceContext{std::string(trace), std::string(span), (digit & 1) != 0};
}

std::string Traceparent(const TraceContext& context) {
  return absl::StrCat("00-", context.trace_id, "-", context.span_id, context.sampled ? "-01" : "-00");
}

TraceContext NewSpan(const std::optional<TraceContext>& parent, bool sampled) {
  return {parent ? parent->trace_id : RandomId() + RandomId(), RandomId(), sampled};
}

}  // namespace runahead
