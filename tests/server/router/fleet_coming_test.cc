// Whether a prompt waits for one that begins alike, by what prompts and rests took lately.
#include <vector>

#include "tests/server/router/fleet_fixture.h"

namespace runahead {
namespace {

constexpr KnownWays kRowsAlone{.rows = true}, kChainAlone{.chain = true};

// A prompt of 1,000 tokens takes a second on a worker; another one brings all but its last 100.
class FleetComingTest : public testing::FleetTest {
 protected:
  FleetComingTest() {
    Make(10);
    fleet_->SetReady(Worker(0));
    queue_->PrefillTook(kPrompt, 1, absl::Seconds(1));
  }
  bool Pays(KnownWays ways, double wait_s, int64_t waiting = 0, double alone_s = 1) const {
    return queue_->PaysToWait({.tokens = kPrompt, .parts = {}}, {kKnown, absl::Seconds(wait_s), waiting, ways},
                              absl::Seconds(alone_s), PartitionTable());
  }
  // A chain that computes the prompt, or what is behind so many tokens of it.
  void ChainTook(double took_s, int64_t known = 0) {
    queue_->ChainTook({.tokens = kPrompt, .parts = {}, .known_tokens = known}, /*width=*/1, /*own_leases=*/0,
                      absl::Seconds(took_s), PartitionTable());
  }

  static constexpr int64_t kPrompt = 1000, kKnown = 900;
};

TEST_F(FleetComingTest, RowsTakeTheRestTwiceAsLongAsAChainThatHasItAtOnce) {
  EXPECT_TRUE(Pays(kRowsAlone, 0.79));
  EXPECT_FALSE(Pays(kRowsAlone, 0.81));
  EXPECT_TRUE(Pays(kChainAlone, 0.88));
  EXPECT_FALSE(Pays(kChainAlone, 0.91));
}

TEST_F(FleetComingTest, TheSoonerOneOfTheTwoCounts) {
  EXPECT_TRUE(Pays({.rows = true, .chain = true}, 0.88));
  EXPECT_FALSE(Pays({.rows = true, .chain = true}, 0.91));
  ChainTook(3, kKnown);
  EXPECT_FALSE(Pays(kChainAlone, 0.79));
  EXPECT_TRUE(Pays({.rows = true, .chain = true}, 0.79));
  EXPECT_FALSE(Pays({}, 0));
}

// Whatever it takes.
TEST_F(FleetComingTest, WhatItBeginsBehindInAnyCaseIsNotWaitedFor) {
  for (const KnownWays ways : {kRowsAlone, kChainAlone}) {
    const auto pays = [&](int64_t begun) {
      return queue_->PaysToWait({.tokens = kPrompt, .parts = {}}, {kKnown, {}, 0, ways, begun}, absl::Seconds(1),
                                PartitionTable());
    };
    EXPECT_TRUE(pays(kKnown - kLeastKnownTokens));
    EXPECT_FALSE(pays(kKnown - kLeastKnownTokens + 1));
  }
}

TEST_F(FleetComingTest, WithoutTimesHalfOfTheRestIsWaitedFor) {
  for (const KnownWays ways : {kRowsAlone, kChainAlone}) {
    const auto pays = [&](int64_t known) {
      return queue_->PaysToWait({.tokens = kPrompt, .parts = {}}, {known, {}, 0, ways, /*begun=*/800}, {},
                                PartitionTable());
    };
    EXPECT_TRUE(pays(900));
    EXPECT_FALSE(pays(899));
  }
}

TEST_F(FleetComingTest, WhatBringingTookLatelyComesOnTopOfTheRest) {
  ChainTook(1.1, kKnown);  // a second more than the rest, which counts for half
  EXPECT_TRUE(Pays(kChainAlone, 0.33));
  EXPECT_FALSE(Pays(kChainAlone, 0.35));
}

TEST_F(FleetComingTest, WhereAllPromptsAreSlowTheRestIsToo) {
  ChainTook(2);  // twice what was expected, which counts for half: 1.41
  EXPECT_TRUE(Pays(kRowsAlone, 0.70));
  EXPECT_FALSE(Pays(kRowsAlone, 0.74));
  EXPECT_TRUE(Pays(kChainAlone, 0.83));
  EXPECT_FALSE(Pays(kChainAlone, 0.86));
}

TEST_F(FleetComingTest, ChainsOfThoseThatWaitAlreadyAreSpreadOverTheWorkers) {
  EXPECT_TRUE(Pays(kChainAlone, 0.35, /*waiting=*/5));
  EXPECT_FALSE(Pays(kChainAlone, 0.45, /*waiting=*/5));
  fleet_->SetReady(Worker(1));
  EXPECT_TRUE(Pays(kChainAlone, 0.45, /*waiting=*/5));
}

// Of two seconds one is of what goes before it.
TEST_F(FleetComingTest, WhatGoesBeforeItGoesBeforeAChainBehindItToo) {
  ChainTook(1.1, kKnown);
  EXPECT_TRUE(Pays(kChainAlone, 0.9, 0, /*alone_s=*/2));
  for (int i = 0; i < 2; ++i) ChainTook(3, kKnown);
  EXPECT_FALSE(Pays(kChainAlone, 0, 0, /*alone_s=*/2)) << "the rest takes longer than all of it";
}

TEST_F(FleetComingTest, APlaceIsWorthWhatGoesBeforeItAndWhatPromptsTakeLately) {
  Placement placement;
  const ChainRequest request{.tokens = kPrompt, .parts = {}};
  const auto expect_s = [&] {
    return absl::ToDoubleSeconds(queue_->ExpectPlaced(placement, request, PartitionTable()));
  };
  EXPECT_DOUBLE_EQ(expect_s(), 1);
  placement.first_token_in = absl::Seconds(3);
  EXPECT_DOUBLE_EQ(expect_s(), 3);
  ChainTook(2);
  EXPECT_NEAR(expect_s(), 3.41, 0.01);
}

}  // namespace
}  // namespace runahead
