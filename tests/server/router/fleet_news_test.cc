// News of workers while requests wait and plans are made: who is held up, and who wakes.
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "tests/server/router/fleet_fixture.h"

namespace runahead {
namespace {

using FleetNewsTest = testing::FleetTest;

TEST_F(FleetNewsTest, NewsOfWorkersIsTakenWhileAPlanIsMade) {
  std::promise<void> plans, go_on;
  std::atomic<int> planned = 0;
  Fleet fleet({{"prefill", "a:1"}, {"prefill", "a:2"}, {"decode", "a:3"}}, metrics_, clock_);
  FleetQueue queue(fleet, 10, metrics_, clock_, [&](const auto&... what) {
    if (planned++ == 0) {
      plans.set_value();
      go_on.get_future().wait();
    }
    return PlanChain(what...);
  });
  const auto prefill = Worker(0), decode = Worker(2);
  fleet.SetReady(prefill);
  fleet.SetReady(decode);
  fleet.LeaseTaken(*decode, 10);
  const FleetQueue::Ticket ticket(queue);
  auto placed = std::async(std::launch::async, [&] {
    return RunHere(queue.Acquire(ticket, {.tokens = 5, .parts = {}}, PartitionTable(), cancel_, absl::InfiniteFuture(),
                                 std::nullopt));
  });
  plans.get_future().wait();
  const std::pair<const char*, std::function<void()>> all_news[] = {
      {"FinishJob", [&] { fleet.FinishJob(*prefill, 7); }},
      {"WithdrawJob", [&] { fleet.WithdrawJob(*prefill, 8); }},
      {"SetReady", [&] { fleet.SetReady(Worker(1)); }},
      {"SetNotReady", [&] { fleet.SetNotReady(1, WorkerState::kLost, "gone"); }},
      {"SetBroken", [&] { fleet.SetBroken({.edges = {0}, .handoffs = {}}); }},
      {"LeaseReturned", [&] { fleet.LeaseReturned(*decode, 10, absl::Seconds(1)); }},
      {"cancel", [&] { cancel_.Cancel(absl::CancelledError("gone")); }}};
  std::vector<std::future<void>> taken;
  for (const auto& news : all_news) {
    taken.push_back(std::async(std::launch::async, news.second));
    EXPECT_EQ(taken.back().wait_for(std::chrono::seconds(10)), std::future_status::ready)
        << news.first << " waits for the plan";
  }
  go_on.set_value();
  for (auto& news : taken) news.get();
  EXPECT_TRUE(placed.get().ok());
}

TEST_F(FleetNewsTest, NewsComeWhenTheChangeIsThereToBeSeen) {
  Fleet fleet({{"prefill", "a:1"}}, metrics_, clock_);
  std::vector<std::pair<FleetNews, int>> heard;  // and how many were ready then
  fleet.OnNews([&](const FleetNews& news) { heard.emplace_back(news, fleet.ready_prefill()); });
  fleet.SetDraining(0, true, "it is not there yet");
  fleet.SetInterrupted(0, true);
  EXPECT_TRUE(heard.empty()) << "nothing has changed";
  fleet.SetReady(Worker(0));
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_TRUE(heard[0].first.returned);
  EXPECT_EQ(heard[0].second, 1);
  fleet.SetInterrupted(0, true);
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_TRUE(heard[1].first.places && !heard[1].first.returned);
  EXPECT_EQ(heard[1].second, 0);
  fleet.SetNotReady(0, WorkerState::kRefused, "another model");
  ASSERT_EQ(heard.size(), 3u);
  EXPECT_TRUE(heard[2].first.refused);
  EXPECT_EQ(heard[2].first.left, 0);
  fleet.OnNews(nullptr);
  fleet.SetReady(Worker(0));
  EXPECT_EQ(heard.size(), 3u);
}

// Counts how often somebody that waited went on to look whether its turn has come.
class CountingClock final : public testing::FakeClock {
 public:
  void Unset(Alarm& alarm) override {
    FakeClock::Unset(alarm);
    ++wakes_;
  }
  int wakes() const { return wakes_; }

 private:
  std::atomic<int> wakes_ = 0;
};

TEST_F(FleetNewsTest, AChangeWakesOnlyThoseWhoseTurnItMayBe) {
  constexpr int kWaiting = 200;
  CountingClock clock;
  Fleet fleet({{"prefill", "a:1"}}, metrics_, clock);
  FleetQueue queue(fleet, kWaiting, metrics_, clock);
  const auto worker = Worker(0);
  fleet.SetReady(worker);
  const auto acquire = [&](const FleetQueue::Ticket& ticket, int64_t tokens, CancelToken& cancel) {
    return RunHere(queue.Acquire(ticket, {.tokens = tokens, .parts = {}}, PartitionTable(), cancel,
                                 absl::InfiniteFuture(), std::nullopt));
  };
  const FleetQueue::Ticket computed(queue), queued(queue);
  const uint64_t first = acquire(computed, 1000, cancel_)->number;
  ASSERT_TRUE(acquire(queued, 1000, cancel_).ok());
  // Every second one might go between layers, if there were room.
  std::vector<std::unique_ptr<FleetQueue::Ticket>> tickets;
  std::vector<std::unique_ptr<CancelToken>> cancels;
  std::vector<std::future<absl::StatusOr<Placement>>> placed;
  for (int i = 0; i < kWaiting; ++i) {
    tickets.push_back(std::make_unique<FleetQueue::Ticket>(queue));
    cancels.push_back(std::make_unique<CancelToken>());
    placed.push_back(
        std::async(std::launch::async, [&, i] { return acquire(*tickets[i], i % 2 == 0 ? 1000 : 300, *cancels[i]); }));
    clock.AwaitWaiters(i + 1);
  }
  const int before = clock.wakes();
  fleet.FinishJob(*worker, first);
  EXPECT_TRUE(placed[0].get().ok());
  clock.AwaitWaiters(kWaiting - 1);
  // The one that was placed, and its successor at the head, perhaps more than once.
  EXPECT_LE(clock.wakes() - before, 5);
  // A cancel wakes its own.
  cancels[100]->Cancel(absl::CancelledError("gone"));
  EXPECT_EQ(placed[100].get().status(), absl::CancelledError("gone"));
  EXPECT_LE(clock.wakes() - before, 10);
  for (auto& cancel : cancels) cancel->Cancel(absl::CancelledError("the end"));
}

}  // namespace
}  // namespace runahead
