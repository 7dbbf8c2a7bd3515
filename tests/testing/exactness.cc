#include "tests/testing/exactness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "kernels/base/checks.h"

namespace runahead {
namespace {

template <typename T>
Top TopOfRow(const std::vector<T>& logits) {
  const auto best = std::max_element(logits.begin(), logits.end());
  T second = -std::numeric_limits<T>::infinity();
  for (auto it = logits.begin(); it != logits.end(); ++it) {
    if (it != best) second = std::max(second, *it);
  }
  return {static_cast<int32_t>(best - logits.begin()), static_cast<float>(*best - second)};
}

double LargestOf(absl::Span<const double> row) {
  double largest = 0;
  for (const double value : row) largest = std::max(largest, std::abs(value));
  return largest;
}

}  // namespace

Top TopOf(const std::vector<float>& logits) {
  return TopOfRow(logits);
}

Top TopOf(const std::vector<double>& logits) {
  return TopOfRow(logits);
}

std::vector<double> Doubles(absl::Span<const float> values) {
  return {values.begin(), values.end()};
}

void ExpectRows(absl::Span<const float> actual, absl::Span<const double> expected, int64_t row) {
  ASSERT_EQ(actual.size(), expected.size());
  ASSERT_GT(row, 0);
  ASSERT_EQ(expected.size() % row, 0u);
  for (size_t begin = 0; begin < expected.size(); begin += row) {
    const double largest = LargestOf(expected.subspan(begin, row));
    for (size_t i = begin; i < begin + row; ++i) {
      ASSERT_NEAR(actual[i], expected[i], RowTolerance(largest))
          << "row " << begin / row << ", column " << i - begin << ", of values up to " << largest;
    }
  }
}

void ExpectLogprobs(const std::vector<TokenLogprobPair>& actual, const std::vector<double>& logits) {
  const size_t count = std::min<size_t>(logits.size(), kMostTopK);
  ASSERT_EQ(actual.size(), count) << "not all that a device gives";
  std::vector<double> falling = logits;
  std::nth_element(falling.begin(), falling.begin() + (count - 1), falling.end(), std::greater<>());
  const double least = falling[count - 1];
  const double largest = LargestOf(logits), top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - top);
  std::set<int32_t> seen;
  for (const TokenLogprobPair& pair : actual) {
    ASSERT_TRUE(pair.id >= 0 && pair.id < static_cast<int32_t>(logits.size()) && seen.insert(pair.id).second)
        << "token " << pair.id;
    ASSERT_NEAR(pair.logprob, logits[pair.id] - top - std::log(sum), RowTolerance(largest))
        << "token " << pair.id << ", of logits up to " << largest;
    ASSERT_GE(logits[pair.id], least - RowTolerance(largest)) << "token " << pair.id << " is not among the most likely";
  }
}

void TokenRule::Add(int32_t id, const Top& expected) {
  ++steps_;
  if (id == expected.id) return;
  ++different_;
  const float may_differ_below = dtype_ == DType::kF32 ? 1e-3f : 0.5f;
  EXPECT_LT(expected.margin, may_differ_below) << "step " << steps_ << ": " << id << ", not " << expected.id;
}

void TokenRule::ExpectKept() const {
  if (dtype_ == DType::kF32) return;
  const int may_differ = steps_ * 3 / 100;
  EXPECT_GE(may_differ, 1) << steps_ << " steps tell nothing";
  EXPECT_LE(different_, may_differ) << "of " << steps_ << " steps";
}

}  // namespace runahead
