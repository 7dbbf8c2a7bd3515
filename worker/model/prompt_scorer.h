// What a model gives the tokens of a text that is there already: from logits on a device to log probabilities, some
// rows at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/device.h"
#include "worker/model/sampling.h"

namespace runahead {

// Used by one thread, for one chunk at a time.
class PromptScorer {
 public:
  // Rows of a chunk, at most. Logits of so many are 39 MB where the vocabulary is of 152,000, the largest we run, and a
  // product of so many rows reads the head's weights seldom enough.
  static constexpr int64_t kRows = 64;

  // Allocates on `device`, which outlives it.
  static absl::StatusOr<std::unique_ptr<PromptScorer>> Create(Device& device, int64_t vocab);

  // Enqueues what Take needs: row i of `logits` f32 [rows, vocab] says what token ids[i] was given, which stands at
  // `position` + i of the text. With so many alternatives, in [0, kMostLogprobs].
  absl::Status Enqueue(Stream& stream, const Tensor& logits, absl::Span<const int32_t> ids, int64_t position,
                       int32_t alternatives);

  // Of each row once the stream got past Enqueue, as TokenSampler has it for drawn tokens: natural logarithms, before
  // bias, penalties and temperature; the token itself first, then the likeliest others in falling order. INTERNAL where
  // a row's logits are not finite.
  absl::StatusOr<std::vector<TokenLogprobPairs>> Take() const;

 private:
  PromptScorer(Device& device, int64_t vocab) : device_(device), vocab_(vocab) {}
  // Where the host finds the ids that were drawn: behind them values and log sums [n], the k likeliest ids and their
  // values [n, k].
  const int32_t* drawn() const { return reinterpret_cast<const int32_t*>(host_drawn_.data()); }

  Device& device_;
  const int64_t vocab_;
  Tensor masks_, host_masks_;  // uint32 [kRows, MaskWords(vocab)]: in each row one id, that of the text
  BufferRef drawn_, host_drawn_;
  // Of the last chunk.
  std::vector<int32_t> ids_;
  int64_t position_ = 0;
  int64_t top_k_ = 0;
  int32_t alternatives_ = 0;
};

}  // namespace runahead
