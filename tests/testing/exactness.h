// When two runs of a model agree; every comparison of logits, K or V, or of tokens chosen from them, is made here.
//   f32      logits, K and V each within 1e-4 of the largest magnitude in their own row; the same token wherever the
//            margin (first minus second logit) is at least 1e-3
//   16 bits  over many steps, each on the reference's tokens: the same token wherever the margin is at least 0.5, and
//            another one in at most 3% of all steps. Sums round differently in another order, so no bound on values
//            would be both true and of use: tokens are what is promised.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/base/dtype.h"
#include "worker/model/sampling.h"

namespace runahead {

// The argmax (ties to the smaller id), and first - second logit.
struct Top {
  int32_t id;
  float margin;
};
Top TopOf(const std::vector<float>& logits);
Top TopOf(const std::vector<double>& logits);

// How far f32 values may be from a row whose largest magnitude is `largest`.
inline double RowTolerance(double largest) {
  return 1e-4 * largest;
}

std::vector<double> Doubles(absl::Span<const float> values);

// f32: rows of `row` values each, every row by its own largest. K and V lie as [tokens][K|V][kv_dim]: there a row is
// of kv_dim values, for K and V are of different size.
void ExpectRows(absl::Span<const float> actual, absl::Span<const double> expected, int64_t row);

inline void ExpectLogits(absl::Span<const float> actual, absl::Span<const double> expected) {
  ExpectRows(actual, expected, static_cast<int64_t>(expected.size()));
}

// f32: the logprobs of the most likely tokens, as many as a device gives (kMostTopK) or the whole vocabulary, in any
// order, against logits. They are scaled by the largest logit: what a
// logprob has beside it, the sum over the vocabulary, is in none of the products whose rounding is allowed for.
void ExpectLogprobs(const std::vector<TokenLogprobPair>& actual, const std::vector<double>& logits);

// Tokens by the rule of a dtype. For one thread.
class TokenRule {
 public:
  explicit TokenRule(DType dtype) : dtype_(dtype) {}

  // A step: the run's token, and what the reference has. Fails the test where the margin is too large to differ.
  void Add(int32_t id, const Top& expected);
  // After the last step. In 16 bits it fails the test where too many differed, and where there were so few steps that
  // not even one may.
  void ExpectKept() const;

  int steps() const { return steps_; }
  int different() const { return different_; }

 private:
  const DType dtype_;
  int steps_ = 0, different_ = 0;
};

}  // namespace runahead
