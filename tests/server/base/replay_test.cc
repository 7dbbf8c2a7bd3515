#include "server/base/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Outbox, KeepsWhatHasNotBeenAcknowledged) {
  Outbox<int> outbox;
  EXPECT_EQ(outbox.next(), 1u);
  for (const int message : {10, 20, 30}) outbox.Append(message);
  EXPECT_EQ(outbox.next(), 4u);
  EXPECT_TRUE(outbox.Acknowledge(2));
  EXPECT_THAT(outbox.kept(), ElementsAre(30));
  EXPECT_TRUE(outbox.Acknowledge(2));
  EXPECT_TRUE(outbox.Acknowledge(3));
  EXPECT_THAT(outbox.kept(), IsEmpty());
  EXPECT_EQ(outbox.next(), 4u);
}

TEST(Outbox, TakesNoAcknowledgementThatCannotBe) {
  Outbox<int> outbox;
  for (const int message : {10, 20, 30}) outbox.Append(message);
  EXPECT_FALSE(outbox.Acknowledge(4)) << "it was not sent yet";
  EXPECT_TRUE(outbox.Acknowledge(2));
  EXPECT_FALSE(outbox.Acknowledge(1)) << "the other side had more before";
  EXPECT_THAT(outbox.kept(), ElementsAre(30));
}

TEST(Inbox, DropsRepeatsAndSeesGaps) {
  Inbox inbox;
  EXPECT_EQ(inbox.Take(1), InboxAnswer::kNext);
  EXPECT_EQ(inbox.Take(1), InboxAnswer::kRepeat);
  EXPECT_EQ(inbox.Take(3), InboxAnswer::kGap);
  EXPECT_EQ(inbox.received(), 1u);
  EXPECT_EQ(inbox.Take(2), InboxAnswer::kNext);
  EXPECT_EQ(inbox.Take(3), InboxAnswer::kNext);
  EXPECT_EQ(inbox.received(), 3u);
}

// A connection that loses its tail at any time, and is followed by another on which what is kept is sent again.
TEST(Replay, OverAnyCutsEachMessageComesOnceAndInOrder) {
  for (int seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    Outbox<int> outbox;
    Inbox inbox;
    std::deque<std::pair<uint64_t, int>> wire;
    std::vector<int> got;
    constexpr int kMessages = 60;
    while (static_cast<int>(got.size()) < kMessages) {
      const unsigned what = random() % 8;
      if (what < 3 && outbox.next() <= kMessages) {
        const int message = static_cast<int>(outbox.next()) * 7;
        wire.emplace_back(outbox.next(), message);
        outbox.Append(message);
      } else if (what < 6 && !wire.empty()) {
        const InboxAnswer answer = inbox.Take(wire.front().first);
        ASSERT_NE(answer, InboxAnswer::kGap);
        if (answer == InboxAnswer::kNext) got.push_back(wire.front().second);
        wire.pop_front();
      } else if (what == 6) {
        outbox.Acknowledge(inbox.received());
      } else {
        wire.clear();
        // Half of the time the receiver's word is an old one: then there are repeats.
        ASSERT_TRUE(random() % 2 == 0 || outbox.Acknowledge(inbox.received()));
        uint64_t number = outbox.next() - outbox.kept().size();
        for (const int message : outbox.kept()) wire.emplace_back(number++, message);
      }
    }
    for (int i = 0; i < kMessages; ++i) ASSERT_EQ(got[i], (i + 1) * 7);
  }
}

}  // namespace
}  // namespace runahead
