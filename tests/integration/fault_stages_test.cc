// Every process killed at every stage of a request: the client learns whose death it was, what came before is right,
// nothing is held, and the service comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/integration/faults_fixture.h"

namespace runahead {
namespace {

class FaultStagesTest : public FaultsTest {
 protected:
  // A supervisor reaps it, and brings it back on its old port.
  void Kill(const std::string& victim) {
    const pid_t pid = cluster_.pid(victim);
    kill(pid, SIGKILL);
    EXPECT_TRUE(Eventually([&] { return kill(pid, 0) != 0; }));
  }
  // Who a client's status names: the router cannot tell of its own death.
  static std::string Named(const std::string& victim) { return victim == "router" ? "" : victim; }
};

constexpr const char* kAll[] = {"prefill-0", "prefill-1", "decode-0", "router"};

// Reserve is under way: the decode worker stands still, and does not answer.
TEST_F(FaultStagesTest, AtReserve) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(ShortPrompt(2)).ids;
  for (const std::string victim : kAll) {
    SCOPED_TRACE(victim);
    const pid_t decode = cluster_.pid("decode-0");
    StopProcess(decode);
    Running running(cluster_, ShortPrompt(2));
    EXPECT_TRUE(Eventually([&] { return cluster_.Metric("router", "runahead_requests_in_flight") == 1; }));
    Kill(victim);
    if (victim != "decode-0") kill(decode, SIGCONT);
    ExpectFailed(running.answer(), undisturbed, Named(victim));
    ExpectServiceAgain();
  }
}

TEST_F(FaultStagesTest, BeforeTheFirstToken) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(LongPrompt()).ids;
  for (const std::string victim : kAll) {
    SCOPED_TRACE(victim);
    const auto running = BeginLongPrompt();
    Kill(victim);
    ExpectFailed(running->answer(), undisturbed, Named(victim));
    ExpectServiceAgain();
  }
}

// The decode worker stands still once its memory is reserved, before prefill begins: the first token comes, and the
// hand-off of nobody ends.
TEST_F(FaultStagesTest, BetweenTheFirstTokenAndTheEndOfTheHandoff) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(ShortPrompt(2)).ids;
  for (const std::string victim : kAll) {
    SCOPED_TRACE(victim);
    const pid_t decode = cluster_.pid("decode-0"), head = cluster_.pid("prefill-0");
    StopProcess(head);
    Running running(cluster_, ShortPrompt(2));
    EXPECT_TRUE(Eventually([&] { return cluster_.Metric("decode-0", "runahead_kv_leases") == 1; }));
    StopProcess(decode);
    kill(head, SIGCONT);
    EXPECT_TRUE(Eventually([&] { return running.tokens() == 1; }));
    Kill(victim);
    ExpectFailed(running.answer(), undisturbed, Named(victim));
    EXPECT_EQ(running.answer().ids.size(), 1u);
    if (victim != "decode-0") kill(decode, SIGCONT);
    ExpectServiceAgain();
  }
}

TEST_F(FaultStagesTest, InDecode) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(LongAnswer()).ids;
  for (const std::string victim : {"decode-0", "router"}) {
    SCOPED_TRACE(victim);
    const auto running = BeginLongAnswer();
    Kill(victim);
    ExpectFailed(running->answer(), undisturbed, Named(victim));
    ExpectServiceAgain();
  }
  // What prefill workers had to do with it is done.
  for (const std::string victim : {"prefill-0", "prefill-1"}) {
    SCOPED_TRACE(victim);
    const auto running = BeginLongAnswer();
    Kill(victim);
    ExpectUnharmed(running->answer(), undisturbed);
    ExpectServiceAgain();
  }
}

}  // namespace
}  // namespace runahead
