// What is known of one request when it has ended.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace runahead {

struct BenchRecord {
  absl::Status status;
  bool interrupted = false;  // cancelled by us: neither done nor failed
  // Since the load began. With a rate it is the planned time, whenever the request was really sent: who waits for a
  // tool that is late waits as well.
  absl::Duration start;
  absl::Duration late;  // from `start` to when it was sent
  bool held = false;    // it is late because as many as are allowed were under way
  absl::Duration end;   // since the load began
  // From `start`; as far as the answer went.
  absl::Duration ttft;               // to the first token
  absl::Duration e2e;                // to the last one
  std::vector<absl::Duration> itls;  // between arrivals; tokens that come in one message are one
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  int64_t cached_tokens = 0;
  bool counted_by_events = false;  // the server has not said how many tokens its answer has
};

}  // namespace runahead
