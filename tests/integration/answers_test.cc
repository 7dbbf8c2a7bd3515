// Several answers to one prompt over real processes: each is what a request of its own with its seed gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "server/base/answer_seed.h"
#include "server/rpc/channel.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"

namespace runahead {
namespace {

constexpr int kAnswer = 24, kAnswers = 4;

// Of one call, by number.
std::map<int, Answer> SeveralOf(LocalCluster& cluster, v1::GenerateRequest request, int count) {
  request.set_n(count);
  grpc::ClientContext context;
  SetTimeout(context, testing::Patience(LocalCluster::kPatience));
  const auto stream = cluster.stub().Generate(&context, request);
  std::map<int, Answer> answers;
  v1::GenerateResponse response;
  while (stream->Read(&response)) {
    if (response.has_started()) answers[response.started().answer()].started = response.started();
    if (response.has_tokens()) {
      std::vector<int32_t>& ids = answers[response.tokens().answer()].ids;
      ids.insert(ids.end(), response.tokens().ids().begin(), response.tokens().ids().end());
    }
    if (response.has_finished()) answers[response.finished().answer()].finished = response.finished();
  }
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return answers;
}

class AnswersTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_path_ = new std::string(WriteSynthetic(SmallModel(), "answers"));
    cluster_ = new LocalCluster(*model_path_, {"--prefill", "2", "--decode", "1", "--dtype", "f32"});
  }
  static void TearDownTestSuite() {
    delete cluster_;
    delete model_path_;
  }
  void TearDown() override { cluster_->ExpectAllFree(); }

  static v1::GenerateRequest Drawn(const std::vector<int32_t>& ids, uint64_t seed, float temperature) {
    v1::GenerateRequest request = RequestOf(ids, kAnswer);
    request.mutable_sampling()->set_seed(seed);
    request.mutable_sampling()->set_temperature(temperature);
    return request;
  }
  static std::map<int, Answer> Several(const v1::GenerateRequest& request) {
    return SeveralOf(*cluster_, request, kAnswers);
  }
  static int Cached(const Answer& answer) { return answer.finished.usage().cached_prompt_tokens(); }
  // Each is what a request of its own gives whose prompt a chain computes.
  static void ExpectAsAlone(const std::map<int, Answer>& answers, const std::vector<int32_t>& ids, uint64_t seed,
                            float temperature) {
    ASSERT_EQ(answers.size(), static_cast<size_t>(kAnswers));
    for (const auto& [number, answer] : answers) {
      SCOPED_TRACE(number);
      const uint64_t own = SeedOfAnswer(seed, number);
      EXPECT_EQ(answer.started.seed(), own);
      v1::GenerateRequest alone = Drawn(ids, own, temperature);
      alone.set_no_cache(true);
      const Answer expected = cluster_->Generate(alone);
      EXPECT_TRUE(expected.status.ok()) << expected.status.error_message();
      EXPECT_EQ(answer.ids, expected.ids);
      EXPECT_EQ(answer.finished.reason(), expected.finished.reason());
    }
  }

  static std::string* model_path_;
  static LocalCluster* cluster_;
};
std::string* AnswersTest::model_path_ = nullptr;
LocalCluster* AnswersTest::cluster_ = nullptr;

TEST_F(AnswersTest, DrawnOnesAreThoseOfFourRequestsAndThePromptIsComputedOnce) {
  const std::vector<int32_t> ids = SyntheticIds(600, 1);
  const std::map<int, Answer> answers = Several(Drawn(ids, 77, 1.0f));
  ExpectAsAlone(answers, ids, 77, 1.0f);
  for (const auto& [number, answer] : answers) EXPECT_EQ(Cached(answer), number == 0 ? 0 : 599) << number;
  EXPECT_NE(answers.at(1).ids, answers.at(0).ids);
}

TEST_F(AnswersTest, GreedyOnesAreAlike) {
  const std::vector<int32_t> ids = SyntheticIds(512, 2);  // whole blocks
  const std::map<int, Answer> answers = Several(Drawn(ids, 5, 0));
  ExpectAsAlone(answers, ids, 5, 0);
  for (const auto& [number, answer] : answers) EXPECT_EQ(answer.ids, answers.at(0).ids) << number;
}

TEST_F(AnswersTest, WithoutCacheEachComputesThePromptAndNothingIsLeft) {
  const std::vector<int32_t> ids = SyntheticIds(300, 3);
  v1::GenerateRequest request = Drawn(ids, 9, 1.0f);
  request.set_no_cache(true);
  const std::map<int, Answer> answers = Several(request);
  ExpectAsAlone(answers, ids, 9, 1.0f);
  for (const auto& [number, answer] : answers) EXPECT_EQ(Cached(answer), 0) << number;
  EXPECT_EQ(Cached(cluster_->Generate(Drawn(ids, 9, 1.0f))), 0);
}

TEST_F(AnswersTest, TheNextTurnGoesOnBehindAnyOfThem) {
  const std::vector<int32_t> ids = SyntheticIds(400, 4);
  const std::map<int, Answer> answers = Several(Drawn(ids, 11, 1.0f));
  for (const auto& [number, answer] : answers) {
    std::vector<int32_t> next = ids;
    next.insert(next.end(), answer.ids.begin(), answer.ids.end());
    const auto known = static_cast<int>(next.size()) - 1;
    const std::vector<int32_t> more = SyntheticIds(20, 50 + number);
    next.insert(next.end(), more.begin(), more.end());
    EXPECT_EQ(Cached(cluster_->Generate(Drawn(next, 1, 0))), known) << number;
  }
}

// Much slower than any machine: by these times whoever knows a beginning is sooner, however long it takes to bring it.
std::string WriteSlowTable() {
  const std::string path = ::testing::TempDir() + "/answers_without_rows.yaml";
  std::ofstream table(path);
  table << "version: 1\nschedule: kvr\nentries:\n"
        << "  - {width: 1, tokens: 16, fractions: [1], predicted_ttft_s: 0.16}\n"
        << "  - {width: 1, tokens: 4096, fractions: [1], predicted_ttft_s: 40.96}\n";
  return path;
}

// Decode workers that compute no rows of prompts, as on GPUs: chains go on behind what they have.
class AnswersWithoutRowsTest : public ::testing::Test {
 protected:
  AnswersWithoutRowsTest()
      : cluster_(
            WriteSynthetic(SmallModel(), "answers_without_rows"),
            {"--prefill", "2", "--decode", "1", "--dtype", "f32", "--step-rows", "off", "--table", WriteSlowTable()}) {}
  void TearDown() override { cluster_.ExpectAllFree(); }

  void ExpectAsCold(const Answer& answer, v1::GenerateRequest request) {
    request.clear_n();
    request.set_no_cache(true);
    const Answer cold = cluster_.Generate(request);
    ASSERT_TRUE(cold.status.ok()) << cold.status.error_message();
    EXPECT_EQ(cold.finished.usage().cached_prompt_tokens(), 0);
    EXPECT_EQ(answer.ids, cold.ids);
  }
  // KV of the prompt is on its way when the answer is there.
  bool RouterKnows(int tokens) {
    return Eventually([&] { return cluster_.Metric("router", "runahead_known_index_tokens") == tokens; });
  }

  LocalCluster cluster_;
};

TEST_F(AnswersWithoutRowsTest, LaterOnesBeginBehindAllButTheLastToken) {
  const std::vector<int32_t> ids = SyntheticIds(600, 6);
  for (const int tokens : {kAnswer, 1}) {
    SCOPED_TRACE(tokens);
    v1::GenerateRequest request = RequestOf(ids, tokens);
    request.mutable_sampling()->set_seed(13);
    request.mutable_sampling()->set_temperature(1.0f);
    request.mutable_token_ids()->set_ids(0, 3 + tokens);
    const std::map<int, Answer> answers = SeveralOf(cluster_, request, 3);
    ASSERT_EQ(answers.size(), 3u);
    for (const auto& [number, answer] : answers) {
      SCOPED_TRACE(number);
      const v1::Plan& plan = answer.started.plan();
      EXPECT_EQ(plan.schedule(), "kvr");
      EXPECT_EQ(plan.known_tokens(), number == 0 ? 0 : 599);
      EXPECT_EQ(answer.finished.usage().cached_prompt_tokens(), plan.known_tokens());
      request.mutable_sampling()->set_seed(SeedOfAnswer(13, number));
      ExpectAsCold(answer, request);
    }
  }
}

TEST_F(AnswersWithoutRowsTest, OneTokenBeginsBehindASystemPromptThatWasSentAhead) {
  std::vector<int32_t> ids = SyntheticIds(500, 7);
  v1::GenerateRequest request = RequestOf(ids, 1);
  ASSERT_TRUE(cluster_.Generate(request).status.ok());
  ASSERT_TRUE(RouterKnows(500));
  for (const int more : {40, 30}) {
    const auto known = static_cast<int>(ids.size());
    for (const int32_t id : SyntheticIds(more, 70 + more)) request.mutable_token_ids()->add_ids(id);
    ids.assign(request.token_ids().ids().begin(), request.token_ids().ids().end());
    const Answer answer = cluster_.Generate(request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.finished.usage().cached_prompt_tokens(), known);
    EXPECT_EQ(answer.started.plan().decode_worker(), "decode-0");
    ExpectAsCold(answer, request);
    ASSERT_TRUE(RouterKnows(static_cast<int>(ids.size()))) << "its own prompt is kept, too";
  }
}

}  // namespace
}  // namespace runahead
