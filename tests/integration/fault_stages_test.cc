// Every process killed at every stage of a request: before the first token it is planned anew, and gives what it gives
// undisturbed; later the client learns whose death it was, and what came before is right. Nothing is held, and the
// service comes back. stop_stages_test stops them there, cut_stages_test cuts their connections.
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
  // Of a request that had no token yet: it outlives all but the router.
  static void ExpectOutlived(const Answer& answer, const std::vector<int32_t>& undisturbed, const std::string& victim) {
    victim == "router" ? ExpectFailed(answer, undisturbed, "") : ExpectUnharmed(answer, undisturbed);
  }
};

constexpr const char* kAll[] = {"prefill-0", "prefill-1", "decode-0", "router"};

TEST_F(FaultStagesTest, AtReserve) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(RequestFor(Stage::kReserve)).ids;
  cluster_.ExpectAllFree();
  for (const std::string victim : kAll) {
    SCOPED_TRACE(victim);
    const pid_t decode = cluster_.pid("decode-0");
    const Staged staged = BeginAt(Stage::kReserve);
    Kill(victim);
    if (victim != "decode-0") kill(decode, SIGCONT);
    ExpectOutlived(staged.running->answer(), undisturbed, victim);
    ExpectServiceAgain();
  }
}

TEST_F(FaultStagesTest, BeforeTheFirstToken) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(RequestFor(Stage::kPrefill)).ids;
  for (const std::string victim : kAll) {
    SCOPED_TRACE(victim);
    const Staged staged = BeginAt(Stage::kPrefill);
    Kill(victim);
    ExpectOutlived(staged.running->answer(), undisturbed, victim);
    EXPECT_EQ(staged.running->answer().finished.failovers(), victim == "router" ? 0 : 1);
    ExpectServiceAgain();
  }
}

TEST_F(FaultStagesTest, BetweenTheFirstTokenAndTheEndOfTheHandoff) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(RequestFor(Stage::kHandoff)).ids;
  for (const std::string victim : kAll) {
    SCOPED_TRACE(victim);
    const pid_t decode = cluster_.pid("decode-0");
    const Staged staged = BeginAt(Stage::kHandoff);
    Kill(victim);
    ExpectFailed(staged.running->answer(), undisturbed, Named(victim));
    EXPECT_EQ(staged.running->answer().ids.size(), 1u);
    if (victim != "decode-0") kill(decode, SIGCONT);
    ExpectServiceAgain();
  }
}

TEST_F(FaultStagesTest, InDecode) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(RequestFor(Stage::kDecode)).ids;
  for (const std::string victim : {"decode-0", "router"}) {
    SCOPED_TRACE(victim);
    const Staged staged = BeginAt(Stage::kDecode);
    Kill(victim);
    ExpectFailed(staged.running->answer(), undisturbed, Named(victim));
    ExpectServiceAgain();
  }
  // What prefill workers had to do with it is done.
  for (const std::string victim : {"prefill-0", "prefill-1"}) {
    SCOPED_TRACE(victim);
    const Staged staged = BeginAt(Stage::kDecode);
    Kill(victim);
    ExpectUnharmed(staged.running->answer(), undisturbed);
    ExpectServiceAgain();
  }
}

}  // namespace
}  // namespace runahead
