#include "server/base/span_recorder.h"

#include <algorithm>
#include <utility>

namespace runahead {
namespace {

RecordedSpan SpanOf(const char* name, int64_t layer, absl::Time begin, absl::Time end, int64_t amount) {
  const int64_t start_ns = absl::ToUnixNanos(begin);
  const int64_t duration_ns = std::max<int64_t>(0, absl::ToUnixNanos(end) - start_ns);
  return {name, static_cast<int32_t>(layer), start_ns, duration_ns, amount};
}

}  // namespace

void SpanRecorder::Add(const char* name, int64_t layer, absl::Time begin, absl::Time end, int64_t amount) {
  AddWithin(most_, SpanOf(name, layer, begin, end, amount));
}

void SpanRecorder::AddDetail(const char* name, int64_t layer, absl::Time begin, absl::Time end) {
  AddWithin(most_ / 2, SpanOf(name, layer, begin, end, 0));
}

void SpanRecorder::AddWithin(size_t room, const RecordedSpan& span) {
  MutexLock lock(mu_);
  if (recorded_.spans.size() < room) {
    recorded_.spans.push_back(span);
  } else {
    ++recorded_.dropped;
  }
}

SpanRecorder::Recorded SpanRecorder::Take() {
  MutexLock lock(mu_);
  return std::exchange(recorded_, {});
}

}  // namespace runahead
