#include "worker/prefill/transfer_times.h"

#include <algorithm>
#include <utility>

namespace runahead {

std::vector<TransferTimes::Span> TransferTimes::Union(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> joined;
  for (const Span& span : spans) {
    if (joined.empty() || span.begin > joined.back().end) {
      joined.push_back(span);
    } else {
      joined.back().end = std::max(joined.back().end, span.end);
    }
  }
  return joined;
}

absl::Duration TransferTimes::Transfer() const {
  absl::Duration sum;
  for (const Span& span : Union(frames_)) sum += span.end - span.begin;
  return sum;
}

absl::Duration TransferTimes::Hidden() const {
  absl::Duration exposed;
  const std::vector<Span> frames = Union(frames_), idle = Union(idle_);
  for (size_t f = 0, i = 0; f < frames.size() && i < idle.size();) {
    const absl::Time begin = std::max(frames[f].begin, idle[i].begin);
    const absl::Time end = std::min(frames[f].end, idle[i].end);
    if (end > begin) exposed += end - begin;
    ++(frames[f].end < idle[i].end ? f : i);
  }
  return Transfer() - exposed;
}

}  // namespace runahead
