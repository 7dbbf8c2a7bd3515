#include "scheduler/placement/decode_choice.h"

#include <algorithm>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

// Why there is no worker to ask.
absl::Status NoneToAsk(int64_t tokens, absl::Span<const DecodeView> workers) {
  int64_t largest = 0;
  bool any_ready = false, may_come = false;
  for (const DecodeView& worker : workers) {
    any_ready |= worker.ready;
    may_come |= worker.capacity_tokens >= tokens;
    largest = std::max(largest, worker.capacity_tokens);
  }
  if (!may_come && largest > 0) {
    return absl::OutOfRangeError(absl::StrCat("stop.max_tokens: prompt and output need KV memory for ", tokens,
                                              " tokens; the largest decode worker holds ", largest));
  }
  if (!any_ready) return absl::UnavailableError("no decode worker is ready");
  return absl::UnavailableError(
      absl::StrCat("no decode worker whose KV memory holds ", tokens, " tokens of prompt and output is ready"));
}

}  // namespace

absl::StatusOr<std::vector<size_t>> RankDecodeWorkers(int64_t tokens, absl::Span<const DecodeView> workers) {
  std::vector<size_t> ranked;
  bool kept = false;
  for (size_t i = 0; i < workers.size(); ++i) {
    if (!workers[i].ready || workers[i].capacity_tokens < tokens) continue;
    if (workers[i].kept_tokens > 0 && workers[i].room() < tokens) {
      kept = true;
    } else {
      ranked.push_back(i);
    }
  }
  if (ranked.empty() && kept) {
    return absl::ResourceExhaustedError("the decode workers keep their memory for requests that came before");
  }
  if (ranked.empty()) return NoneToAsk(tokens, workers);
  const auto rank = [&](size_t i) { return std::make_tuple(-workers[i].room(), workers[i].leases, i); };
  std::sort(ranked.begin(), ranked.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
  return ranked;
}

}  // namespace runahead
