#include "server/base/task_thread.h"

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/testing/await.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

// A task that runs until it is let go.
struct Held {
  std::promise<void> begun, go;
  std::function<void()> task() {
    return [this] {
      begun.set_value();
      go.get_future().wait();
    };
  }
};

TEST(TaskThread, RunsWhatManyPostAndWhatEachPostsInOrder) {
  constexpr int kPosters = 4, kTasks = 500;
  std::vector<std::vector<int>> ran(kPosters);
  {
    TaskThread thread("tasks");
    std::vector<std::jthread> posters;
    for (int poster = 0; poster < kPosters; ++poster) {
      posters.emplace_back([&, poster] {
        for (int i = 0; i < kTasks; ++i) {
          EXPECT_TRUE(thread.Post([&ran, poster, i] { ran[poster].push_back(i); }));
        }
      });
    }
  }
  for (const std::vector<int>& of_one : ran) {
    ASSERT_EQ(of_one.size(), static_cast<size_t>(kTasks));
    for (int i = 0; i < kTasks; ++i) EXPECT_EQ(of_one[i], i);
  }
}

TEST(TaskThread, StopRunsWhatWasPostedAndTakesNoMore) {
  TaskThread thread("tasks");
  Held held;
  std::atomic<int> ran = 0;
  thread.Post(held.task());
  held.begun.get_future().wait();
  for (int i = 0; i < 3; ++i) thread.Post([&ran] { ++ran; });
  std::jthread let_go([&held] { held.go.set_value(); });
  thread.Stop();
  EXPECT_EQ(ran, 3);
  EXPECT_FALSE(thread.Post([&ran] { ++ran; }));
  thread.Stop();
  EXPECT_EQ(ran, 3);
}

TEST(TaskThread, AbandonDropsWhatHasNotBegun) {
  auto meter = std::make_shared<ProgressMeter>();
  TaskThread thread("tasks", meter);
  Held held;
  std::atomic<int> ran = 0;
  const auto kept = std::make_shared<int>(0);
  thread.Post(held.task());
  held.begun.get_future().wait();
  thread.Post([&ran, kept] { ++ran; });
  thread.PostWork(1, [&ran, kept] { ++ran; });
  std::jthread abandon([&thread] { thread.Abandon(); });
  EXPECT_TRUE(testing::Await("both tasks that wait are dropped", [&] { return kept.use_count() == 1; }));
  held.go.set_value();
  abandon.join();
  EXPECT_EQ(ran, 0);
  EXPECT_FALSE(thread.PostWork(1, [] {}));
  EXPECT_FALSE(meter->Read().computing) << "what never runs is not under way";
}

TEST(TaskThread, TheMeterHearsOfTasksThatWaitAndOfUnitsFromWhenTheyWerePosted) {
  testing::FakeClock clock;
  auto meter = std::make_shared<ProgressMeter>(clock);
  TaskThread thread("tasks", meter);
  EXPECT_FALSE(meter->Read().computing);

  Held task;
  thread.Post(task.task());
  task.begun.get_future().wait();
  clock.Advance(absl::Seconds(3));
  EXPECT_TRUE(meter->Read().computing);
  EXPECT_EQ(meter->Read().since, absl::Seconds(3));
  Held unit;
  thread.PostWork(100, unit.task());
  task.go.set_value();
  unit.begun.get_future().wait();
  clock.Advance(absl::Seconds(2));
  EXPECT_EQ(meter->Read().since, absl::Seconds(2)) << "since the unit was posted, for the task has ended";
  EXPECT_EQ(meter->Read().done, 0u);
  unit.go.set_value();
  thread.Stop();
  EXPECT_FALSE(meter->Read().computing);
  EXPECT_EQ(meter->Read().done, 1u);
}

}  // namespace
}  // namespace runahead
