// Chats over real processes whose beginnings a decode worker knows: the rest is computed there, and the words stay.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/local_cluster.h"
#include "tests/testing/exactness.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"

namespace runahead {
namespace {

constexpr int kAnswer = 16;

class KnownTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_path_ = new std::string(WriteSynthetic(SmallModel(), "known"));
    loaded_ = new LoadedModel(LoadForTest(*model_path_, DType::kF32, 1));
    cluster_ = new LocalCluster(*model_path_, {"--prefill", "2", "--decode", "2", "--dtype", "f32", "--experiments"});
  }
  static void TearDownTestSuite() {
    delete cluster_;
    delete loaded_;
    delete model_path_;
  }
  void TearDown() override { cluster_->ExpectAllFree(); }

  // Greedy tokens of the plain forward pass, with the margin at each step.
  static std::vector<Top> Plain(const std::vector<int32_t>& ids) {
    SequenceRunner runner(*loaded_, static_cast<int64_t>(ids.size()) + kAnswer);
    std::vector<Top> result;
    std::vector<float> logits = runner.Append(ids, false, false)[0];
    for (int i = 0; i < kAnswer; ++i) {
      result.push_back(TopOf(logits));
      logits = runner.Append({result.back().id}, true, true)[0];
    }
    return result;
  }
  // What a request of the ids gave, compared with the plain pass: the rule of f32, up to a step that rightly differs.
  static Answer Ask(const std::vector<int32_t>& ids, bool no_cache = false) {
    v1::GenerateRequest request = RequestOf(ids, kAnswer);
    request.set_no_cache(no_cache);
    Answer answer = cluster_->Generate(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    const std::vector<Top> expected = Plain(ids);
    EXPECT_EQ(answer.ids.size(), expected.size());
    TokenRule rule(DType::kF32);
    for (size_t i = 0; i < answer.ids.size() && rule.different() == 0; ++i) rule.Add(answer.ids[i], expected[i]);
    double stages = 0;
    for (const auto& [name, seconds] : answer.finished.timing().stages()) stages += seconds;
    EXPECT_NEAR(stages, answer.finished.timing().ttft_s(), 1e-6);
    return answer;
  }
  static int Cached(const Answer& answer) { return answer.finished.usage().cached_prompt_tokens(); }

  // So many tokens were known, whoever computes the rest: that is chosen by what prompts took.
  static void ExpectKnown(const Answer& answer, int known) {
    const v1::Plan& plan = answer.started.plan();
    const bool by_chain = plan.schedule() != "continuation";
    EXPECT_EQ(plan.workers_size() > 0, by_chain);
    EXPECT_EQ(Cached(answer), known) << plan.DebugString();
    EXPECT_EQ(plan.known_tokens(), Cached(answer));
  }

  static std::string* model_path_;
  static LoadedModel* loaded_;
  static LocalCluster* cluster_;
};
std::string* KnownTest::model_path_ = nullptr;
LoadedModel* KnownTest::loaded_ = nullptr;
LocalCluster* KnownTest::cluster_ = nullptr;

std::vector<int32_t> Joined(std::vector<int32_t> ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

// All but the last token of the turn before: KV of that one was never computed.
TEST_F(KnownTest, EachTurnOfAChatComputesWhatIsNewAlone) {
  std::vector<int32_t> chat = SyntheticIds(600, 1);
  int known = 0;
  for (int turn = 0; turn < 12; ++turn) {
    SCOPED_TRACE(turn);
    const Answer answer = Ask(chat);
    ExpectKnown(answer, known);
    EXPECT_LE(answer.started.plan().known_output_tokens(), turn * (kAnswer - 1));
    chat = Joined(chat, answer.ids);
    known = static_cast<int>(chat.size()) - 1;
    chat = Joined(chat, SyntheticIds(20 + turn, 100 + turn));
  }
}

TEST_F(KnownTest, ABranchKnowsAllBeforeIt) {
  const std::vector<int32_t> system = SyntheticIds(700, 2);
  Ask(Joined(system, SyntheticIds(40, 3)));
  const Answer other = Ask(Joined(system, SyntheticIds(50, 4)));
  ExpectKnown(other, 700);
  EXPECT_EQ(other.started.plan().known_output_tokens(), 0);
}

TEST_F(KnownTest, AnAnswerThatIsMadeAgainKnowsAllButTheLastToken) {
  const std::vector<int32_t> chat = SyntheticIds(512, 5);  // whole blocks
  const Answer first = Ask(chat), again = Ask(chat);
  EXPECT_EQ(Cached(first), 0);
  ExpectKnown(again, 511);
}

TEST_F(KnownTest, AnEditInTheMiddleKnowsWhatStandsBeforeIt) {
  std::vector<int32_t> chat = SyntheticIds(900, 6);
  Ask(chat);
  chat[800] = chat[800] == 5 ? 6 : 5;
  ExpectKnown(Ask(chat), 800);
}

TEST_F(KnownTest, WhoWantsNoCacheHasNoneAndLeavesNone) {
  const std::vector<int32_t> chat = SyntheticIds(600, 7);
  EXPECT_EQ(Cached(Ask(chat, /*no_cache=*/true)), 0);
  EXPECT_EQ(Cached(Ask(chat)), 0) << "the one before left none";
  EXPECT_EQ(Cached(Ask(chat, /*no_cache=*/true)), 0);
  ExpectKnown(Ask(chat), 599);
}

// Which nothing is decoded of. Its prompt is kept behind its answer: who asks at once may find it on its way still.
TEST_F(KnownTest, AnAnswerOfOneTokenLeavesItsPrompt) {
  const std::vector<int32_t> chat = SyntheticIds(600, 9);
  const auto index = [] { return cluster_->Metric("router", "runahead_known_index_tokens"); };
  const double before = index();
  v1::GenerateRequest request = RequestOf(chat, 1);
  request.set_no_cache(false);
  const Answer first = cluster_->Generate(request);
  EXPECT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_EQ(Cached(first), 0);
  ASSERT_TRUE(Eventually([&] { return index() == before + 600; }, LocalCluster::kPatience));
  ExpectKnown(Ask(chat), 599);
  const Answer again = cluster_->Generate(request);
  EXPECT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(Cached(again), 599);
}

TEST_F(KnownTest, AChainThatIsAskedForIsTaken) {
  const std::vector<int32_t> chat = SyntheticIds(600, 8);
  Ask(chat);
  v1::GenerateRequest request = RequestOf(chat, kAnswer);
  request.mutable_experiment()->set_width(2);
  const Answer answer = cluster_->Generate(request);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(Cached(answer), 0);
  EXPECT_EQ(answer.started.plan().workers_size(), 2);
}

}  // namespace
}  // namespace runahead
