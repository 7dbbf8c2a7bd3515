#include "server/router/fleet.h"

#include <future>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/router/agreement.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FleetTest : public ::testing::Test {
 protected:
  void Make(int queue_size) {
    fleet_ = std::make_unique<Fleet>(
        std::vector<WorkerSpec>{{"prefill", "b:1"}, {"prefill", "a:1"}, {"decode", "a:2"}, {"both", "b:2"}}, queue_size,
        metrics_, clock_);
  }
  std::shared_ptr<LiveWorker> Worker(int index, int64_t capacity = 1000) {
    auto worker = std::make_shared<LiveWorker>();
    worker->index = index;
    worker->capabilities.set_max_part_tokens(1000);
    worker->capabilities.set_kv_capacity_tokens(capacity);
    return worker;
  }
  absl::StatusOr<Placement> Acquire(const Fleet::Ticket& ticket, absl::Time deadline = absl::InfiniteFuture(),
                                    std::optional<Fleet::AfterFull> after_full = std::nullopt) {
    return fleet_->Acquire(ticket, {.tokens = 5, .parts = {}}, PartitionTable(), cancel_, deadline, after_full);
  }

  MetricRegistry registry_{"none"};
  RouterMetrics metrics_{registry_, "tiny"};
  testing::FakeClock clock_;
  CancelToken cancel_;
  std::unique_ptr<Fleet> fleet_;
};

TEST_F(FleetTest, TheLineIsByHostThenInTheListsOrder) {
  Make(1);
  EXPECT_THAT(fleet_->line(), ElementsAre(1, 0, 3));
}

TEST_F(FleetTest, TwoJobsAWorkerThenTheOldestWaitsFirst) {
  Make(10);
  const auto worker = Worker(0);
  fleet_->SetReady(worker);
  const Fleet::Ticket first(*fleet_), second(*fleet_), third(*fleet_), fourth(*fleet_);
  EXPECT_TRUE(Acquire(first).ok());
  EXPECT_TRUE(Acquire(second).ok());
  std::vector<int> order;
  auto later = std::async(std::launch::async, [&] {
    EXPECT_TRUE(Acquire(fourth).ok());
    order.push_back(4);
  });
  clock_.AwaitWaiters(1);
  auto earlier = std::async(std::launch::async, [&] {
    EXPECT_TRUE(Acquire(third).ok());
    order.push_back(3);
    fleet_->ReleaseSlot(*worker);
  });
  clock_.AwaitWaiters(2);
  fleet_->ReleaseSlot(*worker);
  earlier.get();
  later.get();
  EXPECT_THAT(order, ElementsAre(3, 4));
}

// Two workers halve 1,000 tokens.
TEST_F(FleetTest, KnownTimesChooseTheWidthByWhatEachWorkerStillHasToDo) {
  Make(10);
  const PartitionTable table = *PartitionTable::Create(
      {{1, 10, {1}, 0.1}, {1, 900, {1}, 8.0}, {2, 10, {0.5, 0.5}, 0.1}, {2, 900, {0.5, 0.5}, 4.0}});
  fleet_->SetReady(Worker(0));
  fleet_->SetReady(Worker(1));
  const auto width = [&](int64_t tokens) {
    const Fleet::Ticket ticket(*fleet_);
    return fleet_
        ->Acquire(ticket, {.tokens = tokens, .parts = {}}, table, cancel_, absl::InfiniteFuture(), std::nullopt)
        ->chain.size();
  };
  EXPECT_EQ(width(10), 1u);
  clock_.Advance(absl::Seconds(100));
  EXPECT_EQ(width(900), 2u);  // the short one is past its time
  clock_.Advance(absl::Seconds(3));
  EXPECT_EQ(width(10), 1u);
}

TEST_F(FleetTest, RefusesWhenTheQueueIsFullAndGivesUpAtTheDeadline) {
  Make(1);
  fleet_->SetReady(Worker(0));
  const Fleet::Ticket a(*fleet_), b(*fleet_), c(*fleet_), d(*fleet_);
  EXPECT_TRUE(Acquire(a).ok());
  EXPECT_TRUE(Acquire(b).ok());
  auto waiting = std::async(std::launch::async, [&] { return Acquire(c, clock_.Now() + absl::Seconds(1)).status(); });
  clock_.AwaitWaiters(1);
  EXPECT_EQ(Acquire(d).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(fleet_->EnterQueue().code(), absl::StatusCode::kResourceExhausted);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(waiting.get().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(fleet_->EnterQueue().ok());
  fleet_->LeaveQueue();
}

TEST_F(FleetTest, ACancelWakesTheOneThatWaits) {
  Make(5);
  fleet_->SetReady(Worker(0));
  const Fleet::Ticket a(*fleet_), b(*fleet_), c(*fleet_);
  EXPECT_TRUE(Acquire(a).ok());
  EXPECT_TRUE(Acquire(b).ok());
  auto waiting = std::async(std::launch::async, [&] { return Acquire(c).status(); });
  clock_.AwaitWaiters(1);
  cancel_.Cancel(absl::CancelledError("gone"));
  EXPECT_EQ(waiting.get(), absl::CancelledError("gone"));
}

TEST_F(FleetTest, AfterFullWaitsForMemoryOrForTheTime) {
  Make(5);
  const auto decode = Worker(2);
  fleet_->SetReady(Worker(0));
  fleet_->SetReady(decode);
  const Fleet::Ticket ticket(*fleet_);
  const Fleet::AfterFull full{fleet_->memory_epoch(), clock_.Now() + absl::Seconds(1)};
  auto by_memory = std::async(std::launch::async, [&] { return Acquire(ticket, absl::InfiniteFuture(), full).ok(); });
  clock_.AwaitWaiters(1);
  fleet_->LeaseReturned(*decode, 0);
  EXPECT_TRUE(by_memory.get());
  const Fleet::AfterFull again{fleet_->memory_epoch(), clock_.Now() + absl::Seconds(1)};
  auto by_time = std::async(std::launch::async, [&] { return Acquire(ticket, absl::InfiniteFuture(), again).ok(); });
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(by_time.get());
}

TEST_F(FleetTest, SlotsOfALostIncarnationDoNotCountForTheNext) {
  Make(0);
  const auto old = Worker(0);
  fleet_->SetReady(old);
  const Fleet::Ticket a(*fleet_), b(*fleet_), c(*fleet_), d(*fleet_);
  EXPECT_TRUE(Acquire(a).ok());
  EXPECT_TRUE(Acquire(b).ok());
  fleet_->SetNotReady(0, WorkerState::kLost, "gone");
  const absl::Status status = Acquire(c).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("b:1: gone"));
  fleet_->SetReady(Worker(0));
  EXPECT_TRUE(Acquire(c).ok());
  fleet_->ReleaseSlot(*old);  // late: of the old one
  EXPECT_TRUE(Acquire(d).ok());
  EXPECT_EQ(Acquire(a).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(FleetTest, RanksDecodeWorkersByWhatIsFree) {
  Make(1);
  const auto one = Worker(2), two = Worker(3);
  fleet_->SetReady(one);
  fleet_->SetReady(two);
  fleet_->LeaseTaken(*one, 600);
  EXPECT_EQ(fleet_->RankDecode(500)->at(0), two);
  fleet_->LeaseTaken(*two, 700);
  EXPECT_EQ(fleet_->RankDecode(500)->at(0), one);
  fleet_->LeaseReturned(*two, 700);
  EXPECT_EQ(fleet_->RankDecode(500)->at(0), two);
  EXPECT_EQ(fleet_->RankDecode(1001).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(CheckAgreement, NamesEverythingThatDiffers) {
  const ModelInfo model{"tiny", "abc", 100, 320};
  v1::Capabilities pool;
  pool.set_protocol_version(1);
  pool.add_roles(v1::WORKER_ROLE_PREFILL);
  pool.set_name("p1");
  pool.set_model_fingerprint("abc");
  pool.set_context_length(100);
  pool.set_compute_dtype("f32");
  pool.set_kv_dtype("f32");
  pool.set_layers(2);
  pool.set_kv_row_bytes(64);
  v1::Capabilities worker = pool;
  EXPECT_TRUE(CheckAgreement({"prefill", "a:1"}, worker, model, &pool).ok());
  worker.set_protocol_version(2);
  worker.set_compute_dtype("bf16");
  worker.set_kv_row_bytes(32);
  worker.set_context_length(50);
  const absl::Status status = CheckAgreement({"decode", "a:1"}, worker, model, &pool);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "worker p1 does not agree: protocol_version is 2, wanted 1; it does not have the role decode that the "
            "worker list gives it; context_length is 50, wanted 100; compute_dtype is bf16, wanted f32; "
            "kv_row_bytes is 32, wanted 64");
  EXPECT_TRUE(CheckAgreement({"prefill", "a:1"}, pool, model, nullptr).ok());
}

}  // namespace
}  // namespace runahead
