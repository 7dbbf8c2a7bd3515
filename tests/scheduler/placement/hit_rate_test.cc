// How much of chats' prompts is known where the router's choice sends them, beside a choice that knows all stores.
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/chat_simulation.h"
#include "tests/testing/chat_traffic.h"

namespace runahead {
namespace {

using testing::ChatSimulation;
using testing::ChatTraffic;
using testing::TrafficShape;

constexpr uint32_t kSeed = 1;

// 2,000 chats of 1 to 20 turns, with edits in the middle, answers that are made again, and long pauses.
TrafficShape Shape() {
  TrafficShape shape;
  shape.span_s = 7200;
  shape.pause_s = 200;
  return shape;
}

// Of all chats as they are at their ends.
int64_t AllTokens() {
  ChatTraffic traffic(Shape(), kSeed);
  int64_t tokens = 0;
  for (int chat = 0; chat < traffic.chats(); ++chat) {
    ChatTraffic::Turn turn;
    while (traffic.GoesOn(chat)) turn = traffic.Next(chat);
    tokens += static_cast<int64_t>(turn.prompt.size() + turn.answer.size());
  }
  return tokens;
}

struct Stores {
  int workers = 1;
  double share = 1;  // of all chats' tokens, what all of them hold
};

class HitRateTest : public ::testing::TestWithParam<Stores> {
 protected:
  static ChatSimulation::Sums Run(bool oracle) {
    const auto [workers, share] = GetParam();
    const auto blocks = static_cast<int64_t>(share * static_cast<double>(AllTokens()) / kKvBlockTokens / workers);
    return ChatSimulation({.decode_workers = workers, .blocks = blocks, .oracle = oracle}, Shape(), kSeed).Run();
  }
};

TEST_P(HitRateTest, IsNearThatOfAChoiceThatKnowsAllStoresAndAnswersAreNoLater) {
  const ChatSimulation::Sums router = Run(/*oracle=*/false), oracle = Run(/*oracle=*/true);
  ASSERT_EQ(router.requests, oracle.requests);
  ASSERT_EQ(router.prompt_tokens, oracle.prompt_tokens) << "the same chats";
  EXPECT_GE(router.known_share(), 0.95 * oracle.known_share());
  EXPECT_LE(router.first_token_s, oracle.first_token_s) << "what it leaves is dearer to wait for than to compute";
  RecordProperty("requests", std::to_string(router.requests));
  RecordProperty("known", std::to_string(router.known_share()));
  RecordProperty("known_by_oracle", std::to_string(oracle.known_share()));
  RecordProperty("gone", std::to_string(router.gone));
}

INSTANTIATE_TEST_SUITE_P(Stores, HitRateTest, ::testing::Values(Stores{1, 0.33}, Stores{2, 0.2}, Stores{3, 0.1}));

}  // namespace
}  // namespace runahead
