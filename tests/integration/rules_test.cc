// What requests ask for beside sampling, over real processes: a chain of two draws the first token, decode the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/grammar/grammar_compiler.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

class RulesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ = new LocalCluster(WriteSynthetic(SmallModel(), "rules"),
                                {"--prefill", "2", "--decode", "1", "--dtype", "f32", "--experiments"});
  }
  static void TearDownTestSuite() { delete cluster_; }
  void TearDown() override { cluster_->ExpectAllFree(); }

  static v1::GenerateRequest Request(int max_tokens) {
    v1::GenerateRequest request = Uncached(RequestOf(SyntheticIds(40, 1), max_tokens));
    request.mutable_experiment()->set_width(2);
    return request;
  }
  static Answer Ask(const v1::GenerateRequest& request) {
    Answer answer = cluster_->Generate(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    return answer;
  }
  static std::vector<int32_t> IdsOf(const std::string& text) {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_text(text);
    request.set_without_begin(true);
    v1::TokenizeResponse response;
    EXPECT_TRUE(cluster_->stub().Tokenize(&context, request, &response).ok());
    return {response.ids().begin(), response.ids().end()};
  }
  static void Bias(v1::GenerateRequest& request, int32_t id, float bias) {
    (*request.mutable_sampling()->mutable_logit_bias())[id] = bias;
  }

  static LocalCluster* cluster_;
};
LocalCluster* RulesTest::cluster_ = nullptr;

TEST_F(RulesTest, ABiasForcesOrBansAToken) {
  v1::GenerateRequest forced = Request(12);
  Bias(forced, 77, 100);
  EXPECT_THAT(Ask(forced).ids, Each(77));
  const Answer free = Ask(Request(12));
  v1::GenerateRequest banned = Request(12);
  for (const int32_t id : free.ids) Bias(banned, id, -100);
  const Answer other = Ask(banned);
  for (const int32_t id : free.ids) EXPECT_THAT(other.ids, Not(Contains(id)));
}

TEST_F(RulesTest, AnAnswerThatWouldEndAtOnceHasItsMinTokens) {
  v1::GenerateRequest request = Request(20);
  request.mutable_stop()->set_ignore_eos(false);
  Bias(request, kSyntheticImEnd, 100);
  EXPECT_EQ(Ask(request).ids.size(), 1u);
  request.mutable_stop()->set_min_tokens(5);
  const Answer answer = Ask(request);
  ASSERT_EQ(answer.ids.size(), 6u);
  EXPECT_EQ(answer.ids.back(), kSyntheticImEnd);
  EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_STOP);
  EXPECT_THAT(std::vector<int32_t>(answer.ids.begin(), answer.ids.end() - 1), Not(Contains(kSyntheticImEnd)));
}

// The first of two tokens is drawn by the chain's tail, the second by decode.
TEST_F(RulesTest, BadWordsOfOneTokenAndOfTwoDoNotCome) {
  std::string letter;
  for (const char* each : {"Q", "Z", "#", "@", "^", "~", "7"}) {
    if (IdsOf(each).size() == 1 && IdsOf(each + std::string(each)) == std::vector<int32_t>(2, IdsOf(each)[0])) {
      letter = each;
    }
  }
  ASSERT_FALSE(letter.empty()) << "the vocabulary joins them all; take others";
  const int32_t id = IdsOf(letter)[0];
  v1::GenerateRequest request = Request(9);
  Bias(request, id, 100);
  EXPECT_THAT(Ask(request).ids, Each(id));
  request.mutable_stop()->add_bad_words(letter + letter);
  const Answer twice = Ask(request);
  for (size_t i = 0; i < twice.ids.size(); ++i) EXPECT_EQ(twice.ids[i] == id, i % 2 == 0) << i;
  request.mutable_stop()->add_bad_words(letter);
  EXPECT_THAT(Ask(request).ids, Not(Contains(id)));
}

// The tail draws the first token, decode the others; and an answer goes on behind what its client has.
TEST_F(RulesTest, AnAnswerHasItsForm) {
  if (!StructuredOutputStatus().ok()) GTEST_SKIP() << "did not run here: " << StructuredOutputStatus().message();
  v1::GenerateRequest request = Request(40);
  request.mutable_stop()->set_ignore_eos(false);
  request.mutable_structure()->set_regex("(north|south)-[0-9]{2}(east|west)?");
  for (const uint64_t seed : {1, 2, 3}) {
    request.mutable_sampling()->set_temperature(seed == 1 ? 0.0f : 1.5f);
    request.mutable_sampling()->set_seed(seed);
    request.clear_output_ids();
    const Answer whole = Ask(request);
    EXPECT_EQ(whole.finished.reason(), v1::FINISH_REASON_STOP);
    EXPECT_THAT(whole.text, ::testing::MatchesRegex("(north|south)-[0-9][0-9](east|west)?"));
    request.mutable_output_ids()->Add(whole.ids.begin(), whole.ids.begin() + 3);
    EXPECT_EQ(Ask(request).ids, std::vector<int32_t>(whole.ids.begin() + 3, whole.ids.end()));
  }
  request.clear_output_ids();
  request.mutable_structure()->set_regex("(a");
  EXPECT_EQ(cluster_->Generate(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RulesTest, ATruncatedPromptIsAnsweredAsItsEnd) {
  const std::vector<int32_t> ids = SyntheticIds(90, 2);
  const Answer end = Ask(Uncached(RequestOf({ids.end() - 25, ids.end()}, 8)));
  v1::GenerateRequest request = Uncached(RequestOf(ids, 8));
  request.set_truncate_prompt(25);
  const Answer truncated = Ask(request);
  EXPECT_EQ(truncated.started.prompt_tokens(), 25);
  EXPECT_EQ(truncated.ids, end.ids);
}

TEST_F(RulesTest, ATimeoutEndsAnAnswer) {
  v1::GenerateRequest request = Request(1);
  request.mutable_stop()->clear_max_tokens();
  request.mutable_stop()->set_fill_context(true);
  request.set_timeout_s(0.001);
  const Answer answer = cluster_->Generate(request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("timeout_s: the request's 0.001 seconds are over"));
}

TEST_F(RulesTest, TheLogSaysForWhom) {
  v1::GenerateRequest request = Request(2);
  request.set_user("someone@example");
  Ask(request);
  EXPECT_TRUE(Eventually([] { return cluster_->Log().find("user=someone@example") != std::string::npos; }));
}

}  // namespace
}  // namespace runahead
