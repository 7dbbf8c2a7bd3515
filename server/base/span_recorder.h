// What a process remembers of one request that is traced: named spans of time (docs/traces.md), on MonotonicNow().
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"

namespace runahead {

struct RecordedSpan {
  const char* name = "";  // a literal
  int32_t layer = -1;     // -1: of no layer
  int64_t start_ns = 0;   // of absl::ToUnixNanos
  int64_t duration_ns = 0;
  int64_t amount = 0;  // bytes or tokens, as the name says; 0: none
};

// Of one request in one process. Thread-safe; takes some 50 ns a span, and never more memory than `most` spans.
class SpanRecorder {
 public:
  // A chain of 16 over 100 layers makes 4,000 spans a member.
  static constexpr size_t kMost = 8192;

  explicit SpanRecorder(size_t most = kMost) : most_(most) {}

  // `name` is a literal. A span that ends before it begins is taken as empty.
  void Add(const char* name, int64_t layer, absl::Time begin, absl::Time end, int64_t amount = 0)
      RUNAHEAD_EXCLUDES(mu_);
  // The same for what there is much of and what matters less: half of the room is not for it.
  void AddDetail(const char* name, int64_t layer, absl::Time begin, absl::Time end) RUNAHEAD_EXCLUDES(mu_);

  struct Recorded {
    std::vector<RecordedSpan> spans;  // in the order in which they were added
    int64_t dropped = 0;              // for want of room
  };
  // Leaves nothing.
  Recorded Take() RUNAHEAD_EXCLUDES(mu_);

 private:
  void AddWithin(size_t room, const RecordedSpan& span) RUNAHEAD_EXCLUDES(mu_);

  const size_t most_;
  Mutex mu_;
  Recorded recorded_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
