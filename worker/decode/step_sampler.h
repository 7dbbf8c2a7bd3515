// From a step's logits on the device to a token a row: greedy rows bring back one number, the others their logits.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "worker/model/sampler.h"

namespace runahead {

// Whether a row with these options is decided by the device's top-1, without its logits coming to the host.
bool IsPlainGreedy(const SamplingOptions& options);

// Used by one thread, for one step at a time.
class StepSampler {
 public:
  // Allocates on `device` for steps of at most `max_rows` rows.
  static absl::StatusOr<std::unique_ptr<StepSampler>> Create(Device& device, int64_t max_rows, int64_t vocab);

  // Enqueues what Sample needs. `options[i]` belongs to row i of `logits` f32 [rows, vocab]; they stay the caller's.
  absl::Status Enqueue(Stream& stream, const Tensor& logits, std::vector<const SamplingOptions*> options);

  // The token of `row` once the stream got past Enqueue; the rest as in SampleToken. INTERNAL when the row's logits are
  // not finite.
  absl::StatusOr<Sampled> Sample(int64_t row, const PenaltyCounts& counts, int64_t position) const;

 private:
  StepSampler(Device& device, int64_t vocab) : device_(device), vocab_(vocab) {}

  Device& device_;
  const int64_t vocab_;
  // Top-1 of every row, [3][max_rows]: ids, values, log sums; on the device and here.
  BufferRef top_, host_top_;
  BufferRef host_logits_;  // f32 [max_rows, vocab]; only rows that need it are written
  int64_t rows_ = 0;
  std::vector<const SamplingOptions*> options_;
};

}  // namespace runahead
