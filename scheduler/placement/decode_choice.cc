#include "scheduler/placement/decode_choice.h"

#include <algorithm>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace runahead {

absl::StatusOr<std::vector<size_t>> RankDecodeWorkers(int64_t tokens, absl::Span<const DecodeView> workers) {
  std::vector<size_t> ranked;
  int64_t largest = -1;
  for (size_t i = 0; i < workers.size(); ++i) {
    if (!workers[i].ready) continue;
    largest = std::max(largest, workers[i].capacity_tokens);
    if (workers[i].capacity_tokens >= tokens) ranked.push_back(i);
  }
  if (largest < 0) return absl::UnavailableError("no decode worker is ready");
  if (ranked.empty()) {
    return absl::OutOfRangeError(absl::StrCat("stop.max_tokens: prompt and output need KV memory for ", tokens,
                                              " tokens; the largest decode worker holds ", largest));
  }
  const auto rank = [&](size_t i) {
    const DecodeView& worker = workers[i];
    return std::make_tuple(worker.reserved_tokens - worker.capacity_tokens, worker.leases, i);
  };
  std::sort(ranked.begin(), ranked.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
  return ranked;
}

}  // namespace runahead
