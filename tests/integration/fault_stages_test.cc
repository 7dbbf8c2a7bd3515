// Every process killed at every stage of a request: it outlives all but the router, and gives what it gives
// undisturbed. Nothing is held, and the service comes back. stop_stages_test stops them there, cut_stages_test cuts
// their connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/faults_fixture.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

class FaultStagesTest : public FaultsTest {
 protected:
  // A supervisor reaps it, and brings it back on its old port.
  void Kill(const std::string& victim) {
    const pid_t pid = cluster_.pid(victim);
    kill(pid, SIGKILL);
    EXPECT_TRUE(Eventually([&] { return kill(pid, 0) != 0; }));
  }
  // An answer whose prompt was known, in decode when the victim dies.
  std::unique_ptr<Running> BeginBeside() {
    if (known_answer_.empty()) known_answer_ = cluster_.GenerateEventually(Uncached(KnownAnswer())).ids;
    EXPECT_EQ(known_answer_.size(), 2500u);
    return BeginKnownAnswer();
  }
  void ExpectOutlivedBeside(Running& beside, const std::string& victim) {
    const bool ended_before = beside.answer().status.ok();  // or outlived it
    ended_before ? ExpectUnharmed(beside.answer(), known_answer_)
                 : ExpectOutlived(beside.answer(), known_answer_, victim);
    known_prompts_ += beside.answer().started.plan().known_tokens() > 0;  // what it began with
  }
  // It outlives all but the router, which cannot tell of its own death.
  static void ExpectOutlived(const Answer& answer, const std::vector<int32_t>& undisturbed, const std::string& victim) {
    victim == "router" ? ExpectFailed(answer, undisturbed, "") : ExpectUnharmed(answer, undisturbed);
  }

  std::vector<int32_t> known_answer_;
  int known_prompts_ = 0;  // of those beside
};

constexpr const char* kAll[] = {"prefill-0", "prefill-1", "decode-0", "router"};

TEST_F(FaultStagesTest, AtReserve) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(RequestFor(Stage::kReserve)).ids;
  cluster_.ExpectAllFree();
  for (const std::string victim : kAll) {
    SCOPED_TRACE(victim);
    const auto beside = BeginBeside();
    const pid_t decode = cluster_.pid("decode-0");
    const Staged staged = BeginAt(Stage::kReserve);
    Kill(victim);
    if (victim != "decode-0") kill(decode, SIGCONT);
    ExpectOutlived(staged.running->answer(), undisturbed, victim);
    ExpectOutlivedBeside(*beside, victim);
    ExpectServiceAgain();
  }
  EXPECT_GT(known_prompts_, 0);
}

TEST_F(FaultStagesTest, BeforeTheFirstToken) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(RequestFor(Stage::kPrefill)).ids;
  for (const std::string victim : kAll) {
    SCOPED_TRACE(victim);
    const auto beside = BeginBeside();
    const Staged staged = BeginAt(Stage::kPrefill);
    Kill(victim);
    ExpectOutlived(staged.running->answer(), undisturbed, victim);
    EXPECT_EQ(staged.running->answer().finished.failovers() > 0, victim != "router");
    ExpectOutlivedBeside(*beside, victim);
    ExpectServiceAgain();
  }
  EXPECT_GT(known_prompts_, 0);
}

// What may be the cause of both is not tried a third time.
TEST_F(FaultStagesTest, PresentAtTwoDeaths) {
  v1::GenerateRequest request = LongPrompt();
  request.set_request_id("poison");
  const auto received = [&] { return cluster_.Sum("prefill-1", "runahead_link_bytes_total{direction=\"receive\""); };
  const auto running = BeginLongPrompt(request);
  Kill("prefill-0");
  ASSERT_TRUE(Eventually([&] { return cluster_.Sum("router", "runahead_failovers_total") >= 1; }));
  const double at = received();
  ASSERT_TRUE(Eventually([&] { return received() > at; })) << "it is computed for the second time";
  Kill("prefill-0");
  const std::string told = "when prefill-0 and prefill-0 died: it is not tried again";
  EXPECT_EQ(running->answer().status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(running->answer().status.error_message(), HasSubstr(told));
  EXPECT_TRUE(running->answer().ids.empty());
  const auto logged = [&] {
    return absl::StrContains(cluster_.Log(), absl::StrCat("request poison was being computed ", told));
  };
  EXPECT_TRUE(Eventually(logged));
  ExpectServiceAgain();
}

TEST_F(FaultStagesTest, BetweenTheFirstTokenAndTheEndOfTheHandoff) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(RequestFor(Stage::kHandoff)).ids;
  for (const std::string victim : kAll) {
    SCOPED_TRACE(victim);
    const auto beside = BeginBeside();
    const pid_t decode = cluster_.pid("decode-0");
    const Staged staged = BeginAt(Stage::kHandoff);
    Kill(victim);
    if (victim != "decode-0") kill(decode, SIGCONT);
    ExpectOutlived(staged.running->answer(), undisturbed, victim);
    ExpectOutlivedBeside(*beside, victim);
    ExpectServiceAgain();
  }
  EXPECT_GT(known_prompts_, 0);
}

TEST_F(FaultStagesTest, InDecode) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(RequestFor(Stage::kDecode)).ids;
  for (const std::string victim : {"decode-0", "router"}) {
    SCOPED_TRACE(victim);
    const auto beside = BeginBeside();
    const Staged staged = BeginAt(Stage::kDecode);
    Kill(victim);
    ExpectOutlived(staged.running->answer(), undisturbed, victim);
    EXPECT_EQ(staged.running->answer().finished.failovers() > 0, victim != "router");
    ExpectOutlivedBeside(*beside, victim);
    ExpectServiceAgain();
  }
  // What prefill workers had to do with it is done.
  for (const std::string victim : {"prefill-0", "prefill-1"}) {
    SCOPED_TRACE(victim);
    const auto beside = BeginBeside();
    const Staged staged = BeginAt(Stage::kDecode);
    Kill(victim);
    ExpectUnharmed(staged.running->answer(), undisturbed);
    ExpectOutlivedBeside(*beside, victim);
    ExpectServiceAgain();
  }
  EXPECT_GT(known_prompts_, 0);
}

}  // namespace
}  // namespace runahead
