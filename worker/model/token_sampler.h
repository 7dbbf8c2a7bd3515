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

  // The row in which the device keeps penalty counts and bias of one sequence. It is free again when the last copy of
  // this is gone, which is after the steps that use it, and before the sampler.
  using SequenceRow = std::shared_ptr<const int32_t>;

  // Takes a row for a sequence and brings its counts and its bias there, in stream order. Null for options with
  // neither. RESOURCE_EXHAUSTED where max_rows are taken, or memory for the first bias is not there.
  absl::StatusOr<SequenceRow> TakeRow(Stream& stream, const SamplingOptions& options, const PenaltyCounts& counts);

  // References stay the caller's, until Enqueue returns; the options, until Token did.
  struct Row {
    const SamplingOptions& options;
    int64_t position = 0;         // absolute, of the token that is drawn: as many come before it
    const PenaltyCounts& counts;  // of prompt and output so far
    SequenceRow sequence_row;
    // The last tokens of the output that `counts` has and the sequence row may lack; empty: the very last one.
    absl::Span<const int32_t> fresh = {};
    // Output that comes before the draw and that `counts` does not have: tokens of rows of the same step, which the
    // sequence may not keep.
    absl::Span<const int32_t> ahead = {};
    // A mask of MaskWords(vocab) words: what may be drawn. Empty: every id.
    absl::Span<const uint32_t> allowed = {};
  };
  // Enqueues what Token needs. rows[i] belongs to row i of `logits` f32 [rows, vocab]. Those of a sequence have the
  // same counts, sequence row and fresh tokens. May be enqueued again for the same tokens. INVALID_ARGUMENT where fresh
  // tokens and those ahead of a sequence with penalties are more than kMostTokenCounts, or a mask has another size.
  absl::Status Enqueue(Stream& stream, const Tensor& logits, const std::vector<Row>& rows);

  // The token of `row` once the stream got past Enqueue: Device::Sample with the uniform of seed and position. Logprobs
  // are those of the logits before bias, penalties and temperature, of a device's kMostTopK at most. INTERNAL when the
  // row's logits are not finite; OUT_OF_RANGE, which the client is told, when its mask has no id.
  absl::StatusOr<Sampled> Token(int64_t row) const;

 private:
  struct Wanted {
    int64_t position = 0;
    int32_t logprobs = -1;
  };
  TokenSampler(Device& device, int64_t max_rows, int64_t vocab);
  absl::Status TakeBias(Stream& stream, const SamplingOptions& options, int32_t at);
  absl::Status Penalise(const Row& row, bool is_first, SampleParams& own) const;
  std::vector<TokenLogprobPair> Logprobs(int64_t row, int32_t chosen) const;

  Device& device_;
  const int64_t vocab_;
  // Of both kinds: what the device has, and where it is filled.
  Tensor counts_, host_counts_;    // int32 [max_rows, vocab]: a row for a sequence
  Tensor bias_, host_bias_;        // f32 [max_rows, vocab]: the same; without a buffer before the first bias
  Tensor allowed_, host_allowed_;  // uint32 [max_rows, MaskWords(vocab)]: masks of a step
  std::vector<int32_t> free_;      // rows of counts_ and bias_
  // Of a step with n rows, one after the other: ids, values and log sums [n], the k likeliest ids and their values [n,
  // k].
  BufferRef drawn_, host_drawn_;
  int64_t top_k_ = 0;           // k of this step; 0: no logprobs
  std::vector<Wanted> wanted_;  // by row of this step
};

}  // namespace runahead
