#include "worker/model/prompt_scorer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/device_tensor.h"
#include "tests/testing/test_device.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVocab = 129;

class PromptScorerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = OpenTestDevice(DType::kF32, 2);
    RUNAHEAD_SKIP_WITHOUT_DEVICE(opened.status());
    memory_.emplace(*std::move(opened));
    scorer_ = *PromptScorer::Create(memory_->device(), kVocab);
  }

  static std::vector<float> Drawn(int64_t rows, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 4);
    std::vector<float> logits(rows * kVocab);
    for (float& logit : logits) logit = normal(random);
    return logits;
  }

  absl::StatusOr<std::vector<TokenLogprobPairs>> Score(const std::vector<float>& logits,
                                                       const std::vector<int32_t>& ids, int32_t alternatives) {
    const auto rows = static_cast<int64_t>(logits.size()) / kVocab;
    const Tensor tensor = memory_->NewTensor(logits, rows);
    RUNAHEAD_RETURN_IF_ERROR(scorer_->Enqueue(memory_->stream(), tensor, ids, 7, alternatives));
    memory_->Finish();
    return scorer_->Take();
  }

  // By log-softmax in double.
  static void ExpectScore(const TokenLogprobPairs& actual, const float* logits, int32_t id, int32_t alternatives) {
    double sum = 0;
    for (int64_t i = 0; i < kVocab; ++i) sum += std::exp(static_cast<double>(logits[i]));
    std::vector<int32_t> order(kVocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    std::vector<int32_t> expected = {id};
    order.resize(alternatives + 1);
    for (const int32_t other : order) {
      if (other != id && static_cast<int32_t>(expected.size()) <= alternatives) expected.push_back(other);
    }
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(actual[i].id, expected[i]);
      EXPECT_NEAR(actual[i].logprob, logits[expected[i]] - std::log(sum), 1e-4);
    }
  }

  std::optional<DeviceMemory> memory_;
  std::unique_ptr<PromptScorer> scorer_;
};

TEST_F(PromptScorerTest, GivesWhatLogSoftmaxGivesTheTokensOfTheTextAndTheLikeliest) {
  unsigned seed = 1;
  for (const int64_t rows : {int64_t{1}, int64_t{5}, PromptScorer::kRows}) {
    for (const int32_t alternatives : {0, 1, 5, kMostLogprobs}) {
      const std::vector<float> logits = Drawn(rows, ++seed);
      std::vector<int32_t> ids;
      for (int64_t row = 0; row < rows; ++row) {
        // The likeliest token itself in some rows, in others any, the first and last among them.
        const float* const begin = logits.data() + row * kVocab;
        const auto likeliest = static_cast<int32_t>(std::max_element(begin, begin + kVocab) - begin);
        ids.push_back(row % 3 == 0 ? likeliest : static_cast<int32_t>((row * 64) % kVocab));
      }
      const auto scores = Score(logits, ids, alternatives);
      ASSERT_TRUE(scores.ok()) << scores.status();
      ASSERT_EQ(static_cast<int64_t>(scores->size()), rows);
      for (int64_t row = 0; row < rows; ++row) {
        ExpectScore((*scores)[row], logits.data() + row * kVocab, ids[row], alternatives);
      }
    }
  }
}

TEST_F(PromptScorerTest, LogitsThatAreNotFiniteAreSaidWithTheirPosition) {
  std::vector<float> logits = Drawn(3, 9);
  logits[2 * kVocab + 5] = std::numeric_limits<float>::quiet_NaN();
  const auto scores = Score(logits, {1, 2, 3}, 2);
  EXPECT_EQ(scores.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(scores.status().message(), HasSubstr("position 9 are not finite"));
}

TEST_F(PromptScorerTest, RefusesWhatDoesNotGoTogether) {
  EXPECT_EQ(Score(Drawn(2, 3), {1}, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Score(Drawn(1, 3), {1}, kMostLogprobs + 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Score(Drawn(1, 3), {1}, -1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Score(Drawn(1, 3), {kVocab}, 0).status().code(), absl::StatusCode::kOutOfRange);
  // What was refused leaves nothing behind.
  const std::vector<float> logits = Drawn(1, 4);
  const auto scores = Score(logits, {2}, 1);
  ASSERT_TRUE(scores.ok()) << scores.status();
  ExpectScore((*scores)[0], logits.data(), 2, 1);
}

}  // namespace
}  // namespace runahead
