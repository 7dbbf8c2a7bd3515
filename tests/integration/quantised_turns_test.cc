// Chats over real processes whose decode worker keeps KV in fewer bits: a turn begins with the one before where the
// operator says so, and nowhere else.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/integration/local_cluster.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"

namespace runahead {
namespace {

constexpr int kTurnAnswer = 16;

Answer AskFor(LocalCluster& cluster, const std::vector<int32_t>& chat) {
  v1::GenerateRequest request = RequestOf(chat, kTurnAnswer);
  const Answer answer = cluster.Generate(request);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.ids.size(), static_cast<size_t>(kTurnAnswer));
  return answer;
}

// What came of the last of three turns, behind two with a prompt of 600 tokens and one of 30.
Answer LastOfThreeTurns(const std::string& bits, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"--prefill", "2", "--dtype", "f32", "--kv-bits", bits};
  arguments.insert(arguments.end(), more.begin(), more.end());
  LocalCluster cluster(WriteSynthetic(SmallModel(), "quantised_turns"), arguments);
  std::vector<int32_t> chat = SyntheticIds(600, 1);
  for (int turn = 0; turn < 2; ++turn) {
    const std::vector<int32_t> answer = AskFor(cluster, chat).ids, question = SyntheticIds(30, 2 + turn);
    chat.insert(chat.end(), answer.begin(), answer.end());
    chat.insert(chat.end(), question.begin(), question.end());
  }
  Answer last = AskFor(cluster, chat);
  cluster.ExpectAllFree();
  return last;
}

class QuantisedTurns : public ::testing::TestWithParam<std::string> {};

TEST_P(QuantisedTurns, BeginWithTheTurnBeforeWhereTheOperatorSaysSo) {
  const Answer last = LastOfThreeTurns(GetParam(), {"--keep-beginnings", "on"});
  EXPECT_EQ(last.finished.usage().cached_prompt_tokens(), 600 + kTurnAnswer + 30 + kTurnAnswer - 1)
      << "all but the answer's last token: " << last.started.plan().DebugString();
  EXPECT_EQ(last.started.plan().known_output_tokens(), 2 * (kTurnAnswer - 1));
  EXPECT_GT(last.started.plan().workers_size(), 0) << "a chain computes the rest";
}

TEST_P(QuantisedTurns, AreComputedAnewByThemselves) {
  EXPECT_EQ(LastOfThreeTurns(GetParam(), {}).finished.usage().cached_prompt_tokens(), 0);
}

INSTANTIATE_TEST_SUITE_P(Bits, QuantisedTurns, ::testing::Values("4", "8"),
                         [](const auto& bits) { return "Of" + bits.param; });

}  // namespace
}  // namespace runahead
