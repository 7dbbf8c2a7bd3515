#include "server/router/answer_limits.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

// Tag and length of a span in its process, at most.
constexpr size_t kSpanOverhead = 3;
// What a process has beside its spans, but for its name: tags, lengths and counts.
constexpr size_t kProcessOverhead = 64;

size_t SpanBytes(const v1::TraceSpan& span) {
  return span.ByteSizeLong() + kSpanOverhead;
}

// The largest share of which those that need less leave so much to the others that all fit into `room`.
size_t ShareOf(std::vector<size_t> needs, size_t room) {
  std::sort(needs.begin(), needs.end());
  for (size_t i = 0; i < needs.size(); ++i) {
    const size_t share = room / (needs.size() - i);
    if (needs[i] > share) return share;
    room -= needs[i];
  }
  return needs.empty() ? 0 : needs.back();
}

}  // namespace

absl::Status CheckAnswerSize(const v1::TokenizeResponse& response) {
  const size_t bytes = response.ByteSizeLong();
  if (bytes <= kMaxAnswerBytes) return absl::OkStatus();
  return InvalidField(
      "text", absl::StrCat("its ", response.ids_size(), " tokens make an answer of ", bytes, " bytes, more than the ",
                           kMaxAnswerBytes, " that clients of gRPC take; tokenize it in parts, cut where words begin"));
}

void FitAnswer(v1::Trace& trace) {
  if (trace.ByteSizeLong() <= kMaxAnswerBytes) return;
  size_t room = kMaxAnswerBytes - kProcessOverhead - trace.request_id().size() - trace.trace_id().size();
  std::vector<size_t> needs;
  for (const v1::TraceProcess& process : trace.processes()) {
    room -= std::min(room, process.name().size() + kProcessOverhead);
    size_t need = 0;
    for (const v1::TraceSpan& span : process.spans()) need += SpanBytes(span);
    needs.push_back(need);
  }
  const size_t share = ShareOf(std::move(needs), room);
  for (v1::TraceProcess& process : *trace.mutable_processes()) {
    size_t bytes = 0;
    int kept = 0;
    while (kept < process.spans_size() && (bytes += SpanBytes(process.spans(kept))) <= share) ++kept;
    const int left_out = process.spans_size() - kept;
    process.set_dropped(process.dropped() + left_out);
    process.mutable_spans()->DeleteSubrange(kept, left_out);
  }
}

}  // namespace runahead
