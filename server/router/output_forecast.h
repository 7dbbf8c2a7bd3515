// What a request's answer is expected to take of decode workers, by the answers before it.
#pragma once

#include <cstdint>

#include "kernels/base/mutex.h"
#include "scheduler/placement/expected_output.h"

namespace runahead {

// For how many output tokens decode workers are asked for memory. kExpected: for those that are expected; leases grow.
// kFull: for max_tokens, at once.
enum class ReserveMode { kExpected, kFull };

// Thread-safe. Its lock is held for as long as it takes to look at 64 answers.
class OutputForecast {
 public:
  explicit OutputForecast(ReserveMode mode = ReserveMode::kExpected) : mode_(mode) {}

  ReserveMode mode() const { return mode_; }

  // Output tokens for which memory is to be asked, from 1 to `max_tokens`. With kFull max_tokens.
  int32_t Expect(int64_t prompt_tokens, int32_t max_tokens) const RUNAHEAD_EXCLUDES(mu_) {
    if (mode_ == ReserveMode::kFull) return max_tokens;
    MutexLock lock(mu_);
    return outputs_.Expect(prompt_tokens, max_tokens);
  }

  // As ExpectedOutput::Learn.
  void Learn(int64_t prompt_tokens, int32_t max_tokens, int32_t output_tokens, bool whole) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    outputs_.Learn(prompt_tokens, max_tokens, output_tokens, whole);
  }

 private:
  const ReserveMode mode_;
  mutable Mutex mu_;
  ExpectedOutput outputs_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
