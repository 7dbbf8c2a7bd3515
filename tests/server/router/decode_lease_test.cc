// Requests that wait for decode memory, and those that come meanwhile.
#include "server/router/decode_lease.h"

#include <atomic>
#include <future>
#include <thread>

#include "gmock/gmock.h"
#include "server/task/run_here.h"
#include "tests/testing/await.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/router_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::FakeClock;
using testing::Got;
using testing::kInVain;

class DecodeLeaseTest : public testing::RouterFixture {
 protected:
  void StartWithMemory(int decode_workers, int max_sessions) {
    Start({.prefill = 2, .decode = decode_workers, .max_sessions = max_sessions, .able = [](v1::Capabilities& able) {
             able.set_kv_capacity_tokens(1000);
           }});
    AwaitReady(2, decode_workers);
  }
  void Answers(bool answers) {
    decode_[0]->Change([&](FakeBehaviour& b) { b.answers_leases = answers; });
  }
  // With a clock that only the test moves; the worker's connection has its own.
  absl::StatusOr<std::unique_ptr<DecodeLease>> Reserve() {
    const FleetQueue::Ticket ticket(*queue_);
    return RunHere(DecodeLease::Reserve({"r", 10, 20}, ticket, {}, *queue_, *fleet_, *sequencer_, clock_, cancel_));
  }

  // So often, in steps that are no pause.
  void Look(int times) {
    for (int i = 0; i < times; ++i) {
      clock_.AwaitWaiters(1);
      clock_.Advance(absl::Milliseconds(100));
    }
  }

  FakeClock clock_;
  CancelToken cancel_;
};

TEST_F(DecodeLeaseTest, AnEndlessStreamOfSmallRequestsStarvesNoLargeOne) {
  constexpr int kStreams = 24, kEndless = 1500, kBound = 200;
  StartWithMemory(1, 64);
  // Long enough for others to come while the large one is refused.
  decode_[0]->Change([](FakeBehaviour& b) {
    b.reserve_takes = absl::Milliseconds(4);
    b.generate_takes = absl::Milliseconds(20);
  });
  std::atomic<int> served = 0, failed = 0;
  std::atomic<bool> large_done = false;
  std::vector<std::thread> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.emplace_back([&] {
      while (!large_done && served < kEndless) {
        failed += !Generate(Ids(30, 20)).status.ok();
        ++served;
      }
    });
  }
  EXPECT_TRUE(testing::Await("two requests of each stream were served", [&] { return served >= 2 * kStreams; }));
  const Got large = Generate(Ids(500, 500));
  large_done = true;
  for (std::thread& stream : streams) stream.join();
  EXPECT_TRUE(large.status.ok()) << large.status;
  EXPECT_EQ(failed, 0);
  // As the worker was asked: between the first time for the large one and the last.
  bool asked = false;
  int since = 0, overtook = 0;
  for (const v1::ReserveRequest& request : decode_[0]->reserve_requests()) {
    if (request.prompt_tokens() == 500) {
      asked = true;
      overtook = since;
    } else if (asked) {
      ++since;
    }
  }
  EXPECT_TRUE(asked);
  EXPECT_LT(overtook, kBound);
  RecordProperty("overtook", overtook);
  decode_[0]->AwaitLeases(0);
}

TEST_F(DecodeLeaseTest, OthersGoOnWhereTheyDoNotTakeTheRoomOfOneThatWaits) {
  StartWithMemory(2, 3);  // one that waits for memory does not count against max_sessions
  for (auto& worker : decode_) worker->Change([](FakeBehaviour& b) { b.decode_until = 0; });
  const auto decode_worker = [](Call& call) { return call.Read()->started().plan().decode_worker(); };
  Call one(*stub_, Ids(10, 690)), two(*stub_, Ids(10, 590));
  const std::string full = decode_worker(one), roomier = decode_worker(two);
  EXPECT_NE(full, roomier);
  Call large(*stub_, Ids(500, 400), kInVain);
  for (auto& worker : decode_) worker->AwaitReservations(2);  // refused by both
  Call also_large(*stub_, Ids(500, 450), kInVain);
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 2));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Call(*stub_, Ids(5, 1), kInVain).Finish().status.ok());
  one.Cancel();  // 1,000 are free there, of which 950 are kept for the second
  EXPECT_EQ(decode_worker(large), full);
  large.Cancel();
  EXPECT_EQ(decode_worker(also_large), full);
  two.Cancel();
  also_large.Cancel();
  for (Call* call : {&one, &two, &large, &also_large}) call->Finish();
  for (auto& worker : decode_) worker->AwaitLeases(0);
}

TEST_F(DecodeLeaseTest, HowLongLeasesAreHeldIsLearntOfThoseThatDecode) {
  StartWithMemory(1, 3);
  Reserve()->reset();
  EXPECT_EQ(fleet_->lease_s(), 0) << "its prompt failed, say";
  std::unique_ptr<DecodeLease> first = *Reserve();
  first->Decodes();
  clock_.Advance(absl::Seconds(10));
  std::unique_ptr<DecodeLease> second = *Reserve();
  second->GoesOnFor(*first);
  first.reset();
  EXPECT_EQ(fleet_->lease_s(), 0) << "its sequence goes on";
  second->Decodes();
  clock_.Advance(absl::Seconds(5));
  second.reset();
  EXPECT_EQ(fleet_->lease_s(), 15);
}

TEST_F(DecodeLeaseTest, ReserveWaitsThroughAPauseOfTheRouter) {
  StartWithMemory(1, 3);
  Answers(false);
  auto lease = std::async(std::launch::async, [this] { return Reserve(); });
  decode_[0]->AwaitUnanswered(1);
  for (const int seconds : {10, 5}) {
    clock_.AwaitWaiters(1);
    clock_.Advance(absl::Seconds(seconds));
  }
  clock_.AwaitWaiters(1);
  Answers(true);
  EXPECT_TRUE(lease.get().ok());
  decode_[0]->AwaitLeases(0);
}

TEST_F(DecodeLeaseTest, ReserveEndsWhenItsWorkerIsLost) {
  StartWithMemory(1, 3);
  Answers(false);
  auto lease = std::async(std::launch::async, [this] { return Reserve(); });
  decode_[0]->AwaitUnanswered(1);
  decode_[0]->DropStream();
  const absl::Status status = lease.get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("decode worker decode-0 was lost"));
}

TEST_F(DecodeLeaseTest, ReserveEndsWhereTheWorkerAnswersPingsOnly) {
  StartWithMemory(1, 3);
  Answers(false);
  auto lease = std::async(std::launch::async, [this] { return Reserve(); });
  Look(60);
  EXPECT_EQ(lease.get().status(), absl::UnavailableError("decode worker decode-0: no answer to Reserve"));
}

TEST_F(DecodeLeaseTest, AnUnansweredRenewIsToBeAskedAgainUntilTheWorkerIsLost) {
  StartWithMemory(1, 3);
  const std::unique_ptr<DecodeLease> lease = *Reserve();
  Answers(false);
  const auto renew = [&] { return RunHere(lease->Renew(cancel_)); };
  auto unanswered = std::async(std::launch::async, renew);
  decode_[0]->AwaitUnanswered(1);
  Look(10);
  EXPECT_FALSE(*unanswered.get());
  Answers(true);
  EXPECT_TRUE(*renew());
  Answers(false);
  auto lost = std::async(std::launch::async, renew);
  decode_[0]->AwaitUnanswered(2);
  decode_[0]->DropStream();
  EXPECT_EQ(lost.get().status().code(), absl::StatusCode::kUnavailable);
}

// Whose members hold so many tokens with X.
Placement Chain(std::vector<int64_t> parts, const std::vector<int64_t>& hold_with_x, Schedule schedule) {
  Placement placement;
  placement.plan.parts = std::move(parts);
  placement.plan.schedule = schedule;
  for (const int64_t tokens : hold_with_x) {
    auto worker = std::make_shared<LiveWorker>();
    worker->capabilities.set_max_prefix_tokens_with_x(tokens);
    placement.chain.push_back(std::move(worker));
  }
  return placement;
}

TEST(MaxXTokensTest, IsThePromptWhereAllMembersHoldXOfTheirPrefixAndElseNothing) {
  EXPECT_EQ(MaxXTokens(Chain({10, 20}, {10, 30}, Schedule::kKvr)), 30);
  EXPECT_EQ(MaxXTokens(Chain({10, 20}, {9, 30}, Schedule::kKvr)), 0);
  EXPECT_EQ(MaxXTokens(Chain({10, 20}, {10, 29}, Schedule::kKvr)), 0);
  EXPECT_EQ(MaxXTokens(Chain({10, 20}, {10, 0}, Schedule::kKvr)), 0) << "a worker that says nothing of X";
  EXPECT_EQ(MaxXTokens(Chain({10, 20}, {30, 30}, Schedule::kTsp)), 30);
  EXPECT_EQ(MaxXTokens(Chain({10, 20}, {29, 30}, Schedule::kTsp)), 0) << "all hold the whole prompt";
  Placement behind = Chain({10, 20}, {110, 130}, Schedule::kKvr);
  behind.plan.known_tokens = 100;
  EXPECT_EQ(MaxXTokens(behind), 130) << "what is known before it is the prompt's, too";
  behind.plan.known_tokens = 101;
  EXPECT_EQ(MaxXTokens(behind), 0) << "and the members hold it";
}

TEST_F(DecodeLeaseTest, EveryMemberIsToldOfWhichTokensTheDecodeWorkerTakesXAndKv) {
  Start({.prefill = 2, .decode = 1, .able = [](v1::Capabilities& able) { able.set_max_prefix_tokens_with_x(50); }});
  AwaitReady(2, 1);
  decode_[0]->Change([](FakeBehaviour& b) {
    b.takes_x = true;
    b.kv_from = 16;
  });
  const auto run = [&](int tokens) {
    v1::GenerateRequest request = Ids(tokens, 5);
    request.mutable_experiment()->set_width(2);
    const Got got = Generate(request);
    EXPECT_TRUE(got.status.ok()) << got.status;
  };
  run(50);
  run(51);  // their buffers do not hold X of so many
  for (const auto& worker : prefill_) {
    const std::vector<v1::StartJob> starts = worker->AwaitStarts(2);
    EXPECT_EQ(starts[0].x_tokens(), 50);
    EXPECT_EQ(starts[0].kv_from(), 16);
    EXPECT_TRUE(starts[0].has_lease());
    EXPECT_EQ(starts[1].x_tokens(), 0);
    EXPECT_EQ(starts[1].kv_from(), 0);
  }
}

TEST_F(DecodeLeaseTest, WhereNoXIsTakenNobodyIsToldOfAny) {
  Start({.prefill = 1, .decode = 1});
  AwaitReady(1, 1);
  EXPECT_TRUE(Generate(Ids(50, 5)).status.ok());
  EXPECT_EQ(prefill_[0]->AwaitStarts(1)[0].x_tokens(), 0);
}

}  // namespace
}  // namespace runahead
