// From logits on a device to a token a row. The device draws; ids come to the host, and logprobs where they are asked
// for.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/device.h"
#include "worker/model/penalty_counts.h"
#include "worker/model/sampling.h"

namespace runahead {

// Used by one thread, for one step at a time.
class TokenSampler {
 public:
  // Allocates on `device`, which outlives it, for steps of at most `max_rows` rows.
  static absl::StatusOr<std::unique_ptr<TokenSampler>> Create(Device& device, int64_t max_rows, int64_t vocab);

  // The row in which the device keeps the penalty counts of one sequence. It is free again when the last copy of this
  // is gone, which is after the steps that use it, and before the sampler.
  using CountsRow = std::shared_ptr<const int32_t>;

  // Takes a row for a sequence and brings its counts there, in stream order. Null for options without penalties.
  // RESOURCE_EXHAUSTED where max_rows are taken.
  absl::StatusOr<CountsRow> TakeCountsRow(Stream& stream, const SamplingOptions& options, const PenaltyCounts& counts);

  // References stay the caller's, until Enqueue returns; the options, until Token did.
  struct Row {
    const SamplingOptions& options;
    int64_t position = 0;         // absolute, of the token that is drawn: as many come before it
    const PenaltyCounts& counts;  // of prompt and output so far
    CountsRow counts_row;
    // The last tokens of the output that `counts` has and the counts row may lack; empty: the very last one.
    absl::Span<const int32_t> fresh = {};
    // Output that comes before the draw and that `counts` does not have: tokens of rows of the same step, which the
    // sequence may not keep.
    absl::Span<const int32_t> ahead = {};
  };
  // Enqueues what Token needs. rows[i] belongs to row i of `logits` f32 [rows, vocab]. Those of a sequence have the
  // same counts, counts row and fresh tokens. May be enqueued again for the same tokens. INVALID_ARGUMENT where fresh
  // tokens and those ahead of a sequence with penalties are more than kMostTokenCounts.
  absl::Status Enqueue(Stream& stream, const Tensor& logits, const std::vector<Row>& rows);

  // The token of `row` once the stream got past Enqueue: Device::Sample with the uniform of seed and position. Logprobs
  // are those of the logits before penalties and temperature, of a device's kMostTopK at most. INTERNAL when the row's
  // logits are not finite.
  absl::StatusOr<Sampled> Token(int64_t row) const;

 private:
  struct Wanted {
    int64_t position = 0;
    int32_t logprobs = -1;
  };
  TokenSampler(Device& device, int64_t max_rows, int64_t vocab);
  absl::Status Penalise(const Row& row, bool is_first, SampleParams& own) const;
  std::vector<TokenLogprobPair> Logprobs(int64_t row, int32_t chosen) const;

  Device& device_;
  const int64_t vocab_;
  Tensor counts_, host_counts_;  // int32 [max_rows, vocab]: a row each, and where it is filled
  std::vector<int32_t> free_;    // rows of counts_
  // Of a step with n rows, one after the other: ids, values and log sums [n], the k likeliest ids and their values [n,
  // k].
  BufferRef drawn_, host_drawn_;
  int64_t top_k_ = 0;           // k of this step; 0: no logprobs
  std::vector<Wanted> wanted_;  // by row of this step
};

}  // namespace runahead
