// Many requests at once, with leases, cancels and workers that come and go: whoever's turn has come is woken. Nothing
// here is tried again by time, so a request that is forgotten waits until its deadline, which fails the test.
#include <atomic>
#include <random>
#include <thread>

#include "gtest/gtest.h"
#include "server/router/fleet_queue.h"
#include "server/task/run_here.h"

namespace runahead {
namespace {

constexpr int kThreads = 32, kRequests = 40;
constexpr int64_t kMemory = 1000;  // tokens that a decode worker holds
constexpr absl::Duration kForgotten = absl::Seconds(60);

// Two prefill workers beside each other, and two that decode.
class FleetRandomTest : public ::testing::Test {
 protected:
  FleetRandomTest() {
    for (int index = 0; index < 4; ++index) workers_.push_back(Join(index));
  }

  std::shared_ptr<LiveWorker> Join(int index) {
    auto worker = std::make_shared<LiveWorker>();
    worker->index = index;
    worker->capabilities.set_layers(2);
    worker->capabilities.set_max_prefix_tokens(4000);
    worker->capabilities.set_kv_capacity_tokens(kMemory);
    fleet_.SetReady(worker);
    return worker;
  }

  // From a decode worker's point of view: whether it has so much.
  std::shared_ptr<const LiveWorker> Reserve(const FleetQueue::Ticket& ticket, int64_t tokens) {
    const auto ranked = queue_.RankDecode(ticket, {tokens});
    if (!ranked.ok()) {
      EXPECT_EQ(ranked.status().code(), absl::StatusCode::kResourceExhausted) << ranked.status();
      return nullptr;
    }
    for (const std::shared_ptr<const LiveWorker>& worker : *ranked) {
      if (taken_[worker->index].fetch_add(tokens) + tokens <= kMemory) {
        fleet_.LeaseTaken(*worker, tokens);
        return worker;
      }
      taken_[worker->index] -= tokens;
      fleet_.LeaseRefused(*worker, {tokens});
    }
    return nullptr;
  }

  void Return(const LiveWorker& worker, int64_t tokens) {
    taken_[worker.index] -= tokens;
    fleet_.LeaseReturned(worker, tokens, absl::Seconds(1));
  }

  // One request from its arrival to its end.
  absl::Status Serve(std::mt19937& random) {
    const FleetQueue::Ticket ticket(queue_);
    CancelToken cancel;
    const bool gone = random() % 8 == 0;
    std::thread client([&, pause = random() % 500] {
      absl::SleepFor(absl::Microseconds(pause));
      if (gone) cancel.Cancel(absl::CancelledError("gone"));
    });
    const ChainRequest request{.tokens = 1 + static_cast<int64_t>(random() % (random() % 2 == 0 ? 100 : 3000)),
                               .parts = {}};
    const int64_t lease = random() % 3 == 0 ? 0 : 1 + static_cast<int64_t>(random() % kMemory);
    const absl::Status status = ServeWith(ticket, cancel, request, lease, random);
    client.join();
    return status;
  }

  absl::Status ServeWith(const FleetQueue::Ticket& ticket, CancelToken& cancel, const ChainRequest& request,
                         int64_t lease, std::mt19937& random) {
    std::optional<FleetQueue::AfterFull> after_full;
    while (true) {
      const uint64_t decode_changes = queue_.decode_changes();
      const absl::StatusOr<Placement> placement = RunHere(
          queue_.Acquire(ticket, request, PartitionTable(), cancel, RealClock().Now() + kForgotten, after_full));
      if (!placement.ok()) return placement.status();
      const std::shared_ptr<const LiveWorker> decode = lease > 0 ? Reserve(ticket, lease) : nullptr;
      const bool refused = lease > 0 && decode == nullptr;
      for (const auto& member : placement->chain) {
        if (refused) {
          fleet_.WithdrawJob(*member, placement->number);
        } else {
          absl::SleepFor(absl::Microseconds(random() % 200));
          fleet_.FinishJob(*member, placement->number);
        }
      }
      if (decode != nullptr) {
        absl::SleepFor(absl::Microseconds(random() % 500));
        Return(*decode, lease);
      }
      if (!refused) return absl::OkStatus();
      after_full = FleetQueue::AfterFull{decode_changes, absl::InfiniteDuration(), {lease}};
    }
  }

  MetricRegistry registry_{"none"};
  RouterMetrics metrics_{registry_, "tiny"};
  Fleet fleet_{{{"prefill", "a:1"}, {"prefill", "a:2"}, {"decode", "a:3"}, {"decode", "a:4"}}, metrics_, RealClock()};
  FleetQueue queue_{fleet_, kThreads, metrics_, RealClock()};
  std::vector<std::shared_ptr<LiveWorker>> workers_;
  std::atomic<int64_t> taken_[4] = {};
};

TEST_F(FleetRandomTest, NobodyIsForgotten) {
  std::atomic<int> served = 0, cancelled = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(i);
      for (int n = 0; n < kRequests; ++n) {
        const absl::Status status = Serve(random);
        // One of the two prefill workers is always there.
        EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
        ++(status.ok() ? served : cancelled);
      }
    });
  }
  while (served + cancelled < kThreads * kRequests) {
    absl::SleepFor(absl::Milliseconds(2));
    fleet_.SetNotReady(1, WorkerState::kLost, "gone");
    absl::SleepFor(absl::Milliseconds(1));
    workers_[1] = Join(1);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(served, kThreads * kRequests / 2);
  // All is given back.
  const FleetQueue::Ticket last(queue_);
  EXPECT_EQ(queue_.RankDecode(last, {kMemory})->size(), 2u);
  CancelToken cancel;
  EXPECT_EQ(
      RunHere(queue_.Acquire(last, {.tokens = 3000, .parts = {}}, PartitionTable(), cancel, RealClock().Now(), {}))
          ->chain.size(),
      2u);
}

}  // namespace
}  // namespace runahead
