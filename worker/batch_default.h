// How many sequences a decode worker steps together where nobody says.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace runahead {

// A step of so many is timed at the start, and so many it is at least: a start beside other work takes long.
inline constexpr int64_t kTimedBatch = 32;

// What bounds it: a sequence of prompt and answer, as they are in the middle; ten tokens a second, about as fast as
// people read; and few enough that tables of a step stay small, for any memory and device.
inline constexpr int64_t kUsualSequence = 1024;  // tokens
inline constexpr absl::Duration kLongestStep = absl::Milliseconds(100);
inline constexpr int64_t kMostDefaultBatch = 256;
inline constexpr int64_t kBatchMultiple = 8;

// `capacity_tokens` of KV memory; steps of one sequence and of kTimedBatch take `one` and `timed`, above 0. As many as
// memory holds usual sequences, and a step of which takes kLongestStep at most; kTimedBatch at least.
inline int64_t DefaultBatch(int64_t capacity_tokens, absl::Duration one, absl::Duration timed) {
  // A noisy start may have timed a single one too long: a row is never less than its part where weights cost nothing.
  const absl::Duration row = std::max((timed - one) / (kTimedBatch - 1), timed / (2 * kTimedBatch));
  const int64_t by_time = kTimedBatch + (kLongestStep - timed) / row;
  const int64_t by_memory = capacity_tokens / kUsualSequence;
  const int64_t batch = std::clamp(std::min(by_time, by_memory), kTimedBatch, kMostDefaultBatch);
  return batch / kBatchMultiple * kBatchMultiple;
}

}  // namespace runahead
