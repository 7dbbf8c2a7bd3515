// Connections cut between any two processes, under load: nobody ends, the ways are made anew, and no answer is lost.
// cut_stages_test cuts them at every stage of a request.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/integration/faults_fixture.h"
#include "tests/testing/connections.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

class CutTest : public FaultsTest {
 protected:
  CutTest() : FaultsTest({"--prefill", "3", "--decode", "2"}) {}
  void SetUp() override {
    if (const absl::Status can = testing::CanCut(); !can.ok()) GTEST_SKIP() << "connections cannot be cut: " << can;
  }
};

TEST_F(CutTest, ACutBetweenAnyTwoProcessesLosesNothing) {
  constexpr std::pair<const char*, const char*> kPairs[] = {
      {"prefill-0", "prefill-1"}, {"router", "prefill-1"},   {"prefill-1", "decode-0"}, {"router", "decode-0"},
      {"prefill-1", "prefill-2"}, {"prefill-0", "decode-1"}, {"router", "prefill-0"},   {"prefill-0", "prefill-1"},
      {"router", "decode-1"},     {"prefill-2", "decode-0"}, {"prefill-0", "decode-0"}, {"prefill-1", "decode-1"},
      {"prefill-2", "decode-1"},  {"router", "prefill-2"},
  };
  const std::map<std::string, pid_t> before = cluster_.pids();
  const std::vector<Load::Request> requests = MixedLoad();
  const std::vector<int32_t> whole_line = cluster_.GenerateEventually(ShortPrompt(3)).ids;
  for (const auto& [a, b] : kPairs) {
    SCOPED_TRACE(std::string(a) + " and " + b);
    Load load(cluster_, requests);
    load.AwaitRound();
    absl::StatusOr<int> cut = testing::CutBetween(before.at(a), before.at(b));
    // The first hand-off between two makes their connection: the load may not have had one yet.
    for (int round = 0; cut.ok() && *cut == 0 && round < 20; ++round) {
      load.AwaitRound();
      cut = testing::CutBetween(before.at(a), before.at(b));
    }
    ASSERT_TRUE(cut.ok()) << cut.status();
    EXPECT_GT(*cut, 0);
    load.AwaitRound();
    load.Stop();
    ExpectServiceAgain();
    EXPECT_EQ(cluster_.Generate(ShortPrompt(3)).ids, whole_line);
    EXPECT_EQ(cluster_.pids(), before);
  }
}

TEST_F(CutTest, ACutOfAClientLosesItsRequestOnly) {
  const std::map<std::string, pid_t> before = cluster_.pids();
  Load load(cluster_, MixedLoad());
  testing::TestProcess client({RUNAHEAD_BINARY, "generate", "--router", cluster_.router(), "--prompt", "abc",
                               "--max-tokens", "3000", "--ignore-eos"});
  ASSERT_TRUE(client.ReadUntil([&] { return !client.out().empty(); }));
  const absl::StatusOr<int> cut = testing::CutBetween(client.pid(), before.at("router"));
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(*cut, 1);
  EXPECT_NE(client.Wait(), 0);
  load.AwaitRound();
  load.Stop();
  EXPECT_TRUE(Eventually([&] { return cluster_.Ended("CANCELLED") >= 1; }));
  ExpectServiceAgain();
  EXPECT_EQ(cluster_.pids(), before);
}

}  // namespace
}  // namespace runahead
