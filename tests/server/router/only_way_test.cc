// The way of prompts whose beginning is known, where tests and benchmarks force one: the plan says it.
#include <optional>

#include "tests/server/router/faults_fixture.h"

namespace runahead {
namespace {

using testing::Got;

constexpr int kKnownBefore = 40, kAskedBehind = 400, kAnswerTokens = 5;

class OnlyWayTest : public testing::FaultsFixture {
 protected:
  // A worker has so many tokens of a prompt that is asked for then. No times are known: half of it would be worth it.
  Got AskBehind(int known, std::optional<KnownWay> way, bool computes_rows = true) {
    Start({.able =
               [computes_rows](v1::Capabilities& able) {
                 able.set_lends_beginnings(true);
                 able.set_keeps_beginnings(computes_rows);
               },
           .before =
               [](testing::FakeWorker& worker) {
                 worker.Change([](testing::FakeBehaviour& b) { b.prefill_takes = absl::ZeroDuration(); });
               }});
    AwaitReady(2, 1);
    EXPECT_TRUE(Generate(Ids(known, kAnswerTokens)).status.ok());
    parts_->only_way = way;
    Got got = Generate(Ids(kAskedBehind, kAnswerTokens));
    EXPECT_TRUE(got.status.ok()) << got.status;
    return got;
  }
  static void ExpectWhole(const Got& got) {
    EXPECT_EQ(got.started().plan().schedule(), "kvr");
    EXPECT_EQ(got.started().plan().known_tokens(), 0);
  }
};

// What those below go against.
TEST_F(OnlyWayTest, WithoutOneTheRouterChooses) {
  ExpectWhole(AskBehind(kKnownBefore, std::nullopt));
}

TEST_F(OnlyWayTest, NoneComputesAllThoughNextToAllIsKnown) {
  ExpectWhole(AskBehind(kAskedBehind - 10, KnownWay::kNone));
  EXPECT_EQ(Metric("runahead_continuations_total{result=\"taken\"}"), 0);
}

TEST_F(OnlyWayTest, RowsAreComputedByTheDecodeWorkerThoughLittleIsKnown) {
  const Got got = AskBehind(kKnownBefore, KnownWay::kRows);
  EXPECT_EQ(got.started().plan().schedule(), "continuation");
  EXPECT_EQ(got.started().plan().known_tokens(), kKnownBefore);
}

TEST_F(OnlyWayTest, AChainComputesTheRestThoughLittleIsKnown) {
  const Got got = AskBehind(kKnownBefore, KnownWay::kChain);
  EXPECT_EQ(got.started().plan().schedule(), "kvr");
  EXPECT_EQ(got.started().plan().known_tokens(), kKnownBefore);
}

TEST_F(OnlyWayTest, AWayThatCannotBeGoneIsNone) {
  ExpectWhole(AskBehind(kAskedBehind - 10, KnownWay::kRows, /*computes_rows=*/false));
}

}  // namespace
}  // namespace runahead
