#include "tests/testing/exactness.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/base/checks.h"

namespace runahead {
namespace {

// Fatal failures are told from inside static functions only.
const std::vector<double>& KOfHundredVOfOne() {
  static const std::vector<double> kv = {100, -50, 1, -0.5};
  return kv;
}

TEST(ExactnessTest, KAndVAreScaledApart) {
  ExpectRows({100.009f, -50.009f, 1.00009f, -0.49991f}, KOfHundredVOfOne(), 2);
  EXPECT_FATAL_FAILURE(ExpectRows({100, -50, 1, -0.4998f}, KOfHundredVOfOne(), 2), "row 1, column 1");
  EXPECT_FATAL_FAILURE(ExpectRows({100, -50, 1}, KOfHundredVOfOne(), 2), "expected.size()");
  EXPECT_FATAL_FAILURE(ExpectRows({100, std::nanf(""), 1, -0.5f}, KOfHundredVOfOne(), 2), "row 0, column 1");
}

TEST(ExactnessTest, EveryRowHasAToleranceOfItsOwn) {
  static const std::vector<double> rows = {1000, 2, 1, 2};
  ExpectRows({1000, 2.09f, 1, 2}, rows, 2);
  EXPECT_FATAL_FAILURE(ExpectRows({1000, 2, 1, 2.001f}, rows, 2), "row 1, column 1");
}

// Logprobs as they are: those of unlikely tokens are much larger than any logit.
std::vector<TokenLogprobPair> LogprobsOf(const std::vector<double>& logits) {
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  std::vector<TokenLogprobPair> pairs;
  for (size_t id = 0; id < logits.size(); ++id) {
    pairs.push_back({static_cast<int32_t>(id), static_cast<float>(logits[id] - std::log(sum))});
  }
  return pairs;
}

TEST(ExactnessTest, LogprobsAreScaledByTheLargestLogit) {
  static const std::vector<double> logits(300, 0.5);  // logprobs of -5.7
  std::vector<TokenLogprobPair> pairs = LogprobsOf(logits);
  ExpectLogprobs(pairs, logits);
  static std::vector<TokenLogprobPair> wrong;
  wrong = pairs;
  wrong[7].logprob += 2e-4f;
  EXPECT_FATAL_FAILURE(ExpectLogprobs(wrong, logits), "token 7");
  wrong = pairs;
  wrong[7].id = 8;
  EXPECT_FATAL_FAILURE(ExpectLogprobs(wrong, logits), "token 8");
  wrong = pairs;
  wrong.pop_back();
  EXPECT_FATAL_FAILURE(ExpectLogprobs(wrong, logits), "not all that a device gives");
}

TEST(ExactnessTest, LogprobsOfALargeVocabularyAreThoseOfTheMostLikely) {
  static std::vector<double> logits(2000);
  for (size_t id = 0; id < logits.size(); ++id) logits[id] = static_cast<double>(id) / 200;
  const std::vector<TokenLogprobPair> all = LogprobsOf(logits);
  static std::vector<TokenLogprobPair> top;
  top.assign(all.end() - kMostTopK, all.end());
  ExpectLogprobs(top, logits);
  top[0] = all[0];
  EXPECT_FATAL_FAILURE(ExpectLogprobs(top, logits), "is not among the most likely");
}

TEST(ExactnessTest, InF32OnlyATinyMarginMayDiffer) {
  TokenRule rule(DType::kF32);
  rule.Add(1, {2, 0.0009f});
  EXPECT_NONFATAL_FAILURE(rule.Add(1, {2, 0.001f}), "1, not 2");
  rule.ExpectKept();
}

TEST(ExactnessTest, In16BitsThreeInAHundredMayDifferAndNoneOfALargeMargin) {
  TokenRule rule(DType::kBF16);
  for (int step = 0; step < 97; ++step) rule.Add(step, {step, 0.1f});
  for (int step = 0; step < 3; ++step) rule.Add(1, {2, 0.49f});
  rule.ExpectKept();
  EXPECT_NONFATAL_FAILURE(rule.Add(1, {2, 0.5f}), "1, not 2");
  EXPECT_NONFATAL_FAILURE(rule.ExpectKept(), "of 101 steps");
}

TEST(ExactnessTest, FewStepsTellNothing) {
  static TokenRule rule(DType::kF16);
  for (int step = 0; step < 33; ++step) rule.Add(5, {5, 1});
  EXPECT_NONFATAL_FAILURE(rule.ExpectKept(), "33 steps tell nothing");
  rule.Add(5, {5, 1});
  rule.ExpectKept();
}

}  // namespace
}  // namespace runahead
