// Many requests at once, of which some are gone before their turn: never more run than may, and nobody is forgotten.
#include "server/router/session_places.h"

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/task/thread_executor.h"

namespace runahead {
namespace {

constexpr int kMaxStarting = 3, kMaxRunning = 5, kQueue = 64;

// Counts what runs at once.
class Level {
 public:
  void Up(int most) { EXPECT_LE(++now_, most); }
  void Down() { --now_; }

 private:
  std::atomic<int> now_ = 0;
};

class SessionPlacesTest : public ::testing::Test {
 protected:
  // Steps of which others may come between.
  static Task<> Yield(Executor& executor, int times) {
    for (; times > 0; --times) co_await Switch(executor);
  }
  Task<> Request(ThreadExecutor& executor, std::unique_ptr<SessionPlaces::Place> place, CancelToken& cancel,
                 unsigned random) {
    co_await place->Await(cancel);
    if (!cancel.cancelled()) {
      starting_.Up(kMaxStarting);
      running_.Up(kMaxRunning);
      co_await Yield(executor, random % 7);
      starting_.Down();
      place->Settle();
      co_await Yield(executor, random % 11);
      running_.Down();
    }
    place.reset();
    ++ended_;
  }

  static Task<> Free(std::vector<std::unique_ptr<SessionPlaces::Place>>& places) {
    places.clear();
    co_return;
  }

  MetricRegistry registry_{"none"};
  RouterMetrics metrics_{registry_, "tiny"};
  Fleet fleet_{{{"prefill", "a:1"}}, metrics_, RealClock()};
  FleetQueue queue_{fleet_, kQueue, metrics_, RealClock()};
  SessionPlaces places_{kMaxStarting, kMaxRunning, queue_};
  Level starting_, running_;
  std::atomic<int> ended_ = 0;
};

TEST_F(SessionPlacesTest, NeverMoreRunThanMayAndNobodyIsForgotten) {
  constexpr int kRequests = 3000;
  std::vector<CancelToken> cancels(kRequests);
  int entered = 0, refused = 0;
  {
    ThreadExecutor executor("requests", 3);
    std::mt19937 random(1);
    for (int i = 0; i < kRequests; ++i) {
      auto place = places_.Enter();
      if (!place.ok()) {
        EXPECT_EQ(place.status().code(), absl::StatusCode::kResourceExhausted);
        ++refused;
        std::this_thread::yield();
        continue;
      }
      ++entered;
      executor.Start(Request(executor, *std::move(place), cancels[i], random()));
      if (random() % 4 == 0) cancels[i / 2].Cancel(absl::CancelledError("gone"));
    }
  }
  EXPECT_EQ(ended_, entered);
  EXPECT_EQ(entered + refused, kRequests);
  // All is given back.
  std::vector<std::unique_ptr<SessionPlaces::Place>> all;
  for (int i = 0; i < kMaxStarting + kQueue; ++i) all.push_back(*places_.Enter());
  EXPECT_FALSE(places_.Enter().ok());
}

Task<> Note(std::unique_ptr<SessionPlaces::Place> place, CancelToken& cancel, int name, std::vector<int>& order) {
  co_await place->Await(cancel);
  order.push_back(name);
}

TEST_F(SessionPlacesTest, TurnsComeInTheOrderOfArrivalAndWhoIsGoneWaitsForNone) {
  std::vector<std::unique_ptr<SessionPlaces::Place>> running;
  for (int i = 0; i < kMaxStarting; ++i) running.push_back(*places_.Enter());
  std::vector<int> order;
  std::vector<CancelToken> cancels(4);
  cancels[2].Cancel(absl::CancelledError("gone"));
  {
    ThreadExecutor executor("requests", 1);
    for (int i = 0; i < 4; ++i) executor.Start(Note(*places_.Enter(), cancels[i], i, order));
    executor.Start(Free(running));
  }
  EXPECT_EQ(order, (std::vector<int>{2, 0, 1, 3}));
}

}  // namespace
}  // namespace runahead
