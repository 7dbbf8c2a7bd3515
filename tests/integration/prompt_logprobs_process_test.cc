// Log probabilities of a prompt over real processes: of every width the same, as the reference has them and as decode
// has them of the same tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>

#include "tests/integration/local_cluster.h"
#include "tests/testing/exactness.h"
#include "tests/testing/expected_run.h"
#include "tests/testing/small_model.h"

namespace runahead {
namespace {

constexpr int kScoredTokens = 180;  // a part is of several chunks, or of one

class PromptLogprobsProcessTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string model = WriteSynthetic(SmallModel(), "prompt_logprobs");
    cluster_ = new LocalCluster(model, {"--prefill", "3", "--decode", "1", "--dtype", "f32", "--experiments"});
    expected_ = new ExpectedRun(ReferenceRun(LoadForTest(model, DType::kF32, 1), Prompt()));
  }
  static void TearDownTestSuite() {
    delete cluster_;
    delete expected_;
  }
  void TearDown() override { cluster_->ExpectAllFree(); }

  static std::vector<int32_t> Prompt() { return SyntheticIds(kScoredTokens, 41); }
  static v1::GenerateRequest Request(int width, int alternatives, int max_tokens) {
    v1::GenerateRequest request = Uncached(RequestOf(Prompt(), max_tokens));
    request.mutable_experiment()->set_width(width);
    request.set_prompt_logprobs(alternatives);
    return request;
  }
  // How far a log probability of the token at `index` may be from another sum of the same numbers.
  static double Tolerance(size_t index) {
    double largest = 0;
    for (const double logit : expected_->logits[index - 1]) largest = std::max(largest, std::abs(logit));
    return RowTolerance(largest);
  }
  static void ExpectReference(const Answer& answer, size_t alternatives) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    ASSERT_EQ(answer.prompt_logprobs.size() + 1, static_cast<size_t>(kScoredTokens));
    const std::vector<int32_t> ids = Prompt();
    for (size_t index = 1; index < ids.size(); ++index) {
      const std::vector<double>& logits = expected_->logits[index - 1];
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit);
      const v1::TokenLogprobs& actual = answer.prompt_logprobs[index - 1];
      ASSERT_EQ(actual.top(0).id(), ids[index]);
      EXPECT_GE(static_cast<size_t>(actual.top_size()), alternatives);
      for (const v1::TokenLogprob& top : actual.top()) {
        EXPECT_NEAR(top.logprob(), logits[top.id()] - std::log(sum), Tolerance(index)) << index;
      }
    }
  }

  static LocalCluster* cluster_;
  static ExpectedRun* expected_;
};
LocalCluster* PromptLogprobsProcessTest::cluster_ = nullptr;
ExpectedRun* PromptLogprobsProcessTest::expected_ = nullptr;

TEST_F(PromptLogprobsProcessTest, EveryWidthGivesTheScoresOfTheReference) {
  for (const int width : {1, 2, 3}) {
    SCOPED_TRACE(width);
    const Answer scored = cluster_->Generate(Request(width, 4, 0));
    ExpectReference(scored, 4);
    EXPECT_TRUE(scored.ids.empty());
    EXPECT_EQ(scored.started.plan().workers_size(), width);
    EXPECT_EQ(scored.started.plan().decode_worker(), "");
    const Answer goes_on = cluster_->Generate(Request(width, 0, 5));
    ExpectReference(goes_on, 0);
    EXPECT_EQ(goes_on.ids.size(), 5u);
  }
}

// A decode worker computes each of these tokens behind the others, and says what it was given.
TEST_F(PromptLogprobsProcessTest, DecodeGivesItsTokensTheSame) {
  v1::GenerateRequest request = Uncached(RequestOf(Prompt(), 24));
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(5);
  request.mutable_sampling()->set_logprobs(0);
  request.mutable_stop()->set_ignore_eos(true);
  const Answer drawn = cluster_->Generate(request);
  ASSERT_TRUE(drawn.status.ok()) << drawn.status.error_message();
  ASSERT_EQ(drawn.logprobs.size(), 24u);
  std::vector<int32_t> all = Prompt();
  all.insert(all.end(), drawn.ids.begin(), drawn.ids.end());
  for (const int width : {1, 2, 3}) {
    SCOPED_TRACE(width);
    v1::GenerateRequest scoring = Uncached(RequestOf(all, 0));
    scoring.mutable_experiment()->set_width(width);
    scoring.set_prompt_logprobs(0);
    const Answer scored = cluster_->Generate(scoring);
    ASSERT_TRUE(scored.status.ok()) << scored.status.error_message();
    ASSERT_EQ(scored.prompt_logprobs.size() + 1, all.size());
    for (size_t i = 0; i < drawn.ids.size(); ++i) {
      const v1::TokenLogprobs& score = scored.prompt_logprobs[kScoredTokens - 1 + i];
      EXPECT_EQ(score.top(0).id(), drawn.ids[i]);
      EXPECT_NEAR(score.top(0).logprob(), drawn.logprobs[i].top(0).logprob(), Tolerance(kScoredTokens - 1)) << i;
    }
  }
}

TEST_F(PromptLogprobsProcessTest, AWorkersDeathLosesAndRepeatsNothing) {
  const int had = static_cast<int>(cluster_->Metric("router", "runahead_workers{role=\"prefill\",state=\"ready\"}"));
  ASSERT_EQ(had, 3);
  kill(cluster_->pid("prefill-1"), SIGKILL);
  v1::GenerateRequest request = Request(2, 2, 3);
  ExpectReference(cluster_->Generate(request), 2);
  // The supervisor brings the worker back; the chain of three scores as before.
  EXPECT_TRUE(
      Eventually([] { return cluster_->Metric("router", "runahead_workers{role=\"prefill\",state=\"ready\"}") == 3; }));
  ExpectReference(cluster_->GenerateEventually(Request(3, 2, 3)), 2);
}

}  // namespace
}  // namespace runahead
