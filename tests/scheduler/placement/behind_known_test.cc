// Chains that begin behind a known beginning: what they offer, and which workers and parts they have.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/chain_plan.h"
#include "scheduler/placement/continuation_choice.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;

TEST(TokensToBring, AreAllThatAreKnownButThePromptsLast) {
  EXPECT_EQ(TokensToBring(1000, 900), 900);
  EXPECT_EQ(TokensToBring(768, 768), 767);
  EXPECT_EQ(TokensToBring(768, 900), 767);
  EXPECT_EQ(TokensToBring(1, 1), 0);
}

TEST(OfferBehind, PaysWhereTheFirstTokenComesSooner) {
  EXPECT_EQ(OfferBehind(1000, 768, 2, 1).known_tokens, 768);
  EXPECT_EQ(OfferBehind(1000, 768, 2, 1).rest_s, 1);
  EXPECT_EQ(OfferBehind(1000, 768, 2, 1).whole_s, 2);
  EXPECT_EQ(OfferBehind(1000, 768, 1, 1).known_tokens, 0) << "as good without";
  EXPECT_EQ(OfferBehind(1000, 768, 1, 2).known_tokens, 0) << "it takes long to bring";
  EXPECT_EQ(OfferBehind(1000, 0, 2, 1).known_tokens, 0);
}

TEST(OfferBehind, WithoutTimesHalfOfThePromptMustBeThere) {
  EXPECT_EQ(OfferBehind(1000, 512, 0, 0).known_tokens, 512);
  EXPECT_EQ(OfferBehind(1000, 512, 0, 0).rest_s, 488);
  EXPECT_EQ(OfferBehind(1000, 512, 0, 0).whole_s, 0);
  EXPECT_EQ(OfferBehind(1000, 256, 0, 0).known_tokens, 0);
  EXPECT_EQ(OfferBehind(1000, 512, 2, 0).known_tokens, 512);
}

std::vector<WorkerView> Idle(size_t workers, int64_t holds = 1 << 20) {
  return std::vector<WorkerView>(workers, {.ready = true, .max_prefix_tokens = holds});
}

ChainRequest Behind(int64_t known, int64_t tokens) {
  return {.tokens = tokens, .parts = {}, .expected_s = 0.001, .known_tokens = known};
}

TEST(PlanBehindKnown, TheChainTakesTheRestAlone) {
  const ChainPlan plan = PlanChain(Behind(4096, 4196), PartitionTable(), Idle(2)).value();
  EXPECT_THAT(plan.parts, ElementsAre(50, 50));
  EXPECT_EQ(plan.known_tokens, 4096);
  EXPECT_FALSE(plan.source.has_value()) << "no lookup";
}

TEST(PlanBehindKnown, AShortRestTakesOneWorkerHoweverLongThePrompt) {
  EXPECT_THAT(PlanChain(Behind(4096, 4096 + kTokensPerWorker), PartitionTable(), Idle(4))->parts,
              ElementsAre(kTokensPerWorker));
}

TEST(PlanBehindKnown, EachMemberHoldsWhatIsKnownToo) {
  std::vector<WorkerView> line = Idle(2, 1000);
  EXPECT_THAT(PlanChain(Behind(900, 1000), PartitionTable(), line)->parts, ElementsAre(50, 50));
  line[0].max_prefix_tokens = 940;  // it would hold its part, and that of the whole prompt
  EXPECT_EQ(PlanChain(Behind(900, 1000), PartitionTable(), line)->first, 1u);
  line[1].max_prefix_tokens = 999;
  EXPECT_FALSE(PlanChain(Behind(900, 1000), PartitionTable(), line).ok());
}

// What runs between another's layers, or in a pass with others, has no prefix.
TEST(PlanBehindKnown, NeitherOvertakesNorGoesTogetherWithOthers) {
  std::vector<WorkerView> line = Idle(1);
  line[0].unfinished_jobs = kMaxUnfinishedJobs;
  line[0].interleave = line[0].overtake = Allowance::Left(100);
  line[0].room = 10000;
  ChainRequest whole = Behind(0, 600);
  EXPECT_TRUE(PlanChain(whole, PartitionTable(), line).ok());
  EXPECT_FALSE(PlanChain(Behind(512, 600), PartitionTable(), line).ok());
  EXPECT_FALSE(MayOvertake(Behind(512, 600)));
  EXPECT_FALSE(PlanTogether(Behind(512, 600), line).has_value());
}

PartitionTable Table() {
  std::vector<PartitionEntry> entries;
  for (const int64_t tokens : {256, 4096, 8192}) {
    const double one = 1e-3 * static_cast<double>(tokens);
    entries.push_back({1, tokens, {1}, one});
    entries.push_back({2, tokens, {0.5, 0.5}, 0.5 * one + 0.5});  // half a second for the second worker
  }
  return PartitionTable::Create(entries).value();
}

// By the table two workers are worth it from 1,000 tokens on.
TEST(PlanBehindKnown, TheWidthFollowsWhatTheRestTakes) {
  EXPECT_EQ(PlanChain(Behind(0, 6000), Table(), Idle(2))->parts.size(), 2u);
  EXPECT_EQ(PlanChain(Behind(512, 6000), Table(), Idle(2))->parts.size(), 2u);
  EXPECT_THAT(PlanChain(Behind(5888, 6000), Table(), Idle(2))->parts, ElementsAre(112));
}

}  // namespace
}  // namespace runahead
