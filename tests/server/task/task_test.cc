#include "server/task/task.h"

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "server/task/co_status.h"
#include "server/task/run_here.h"
#include "server/task/thread_executor.h"
#include "server/task/wake.h"

namespace runahead {
namespace {

Task<int> Give(int value) {
  co_return value;
}

Task<int64_t> Sum(int count) {
  int64_t sum = 0;
  for (int i = 0; i < count; ++i) sum += co_await Give(i);
  co_return sum;
}

TEST(Task, ALoopOverTasksThatDoNotWaitDoesNotFillTheStack) {
  EXPECT_EQ(RunHere(Sum(1'000'000)), 499'999'500'000);
}

Task<std::thread::id> ThreadOfIt() {
  co_return std::this_thread::get_id();
}

Task<bool> GoesThereAndComesBack(ThreadExecutor& there) {
  const std::thread::id here = std::this_thread::get_id();
  const std::thread::id other = co_await On(there, ThreadOfIt());
  co_return other != here&& std::this_thread::get_id() == here;
}

TEST(Task, RunsElsewhereAndGoesOnWhereItWas) {
  ThreadExecutor there("there", 1);
  EXPECT_TRUE(RunHere(GoesThereAndComesBack(there)));
}

Task<bool> WaitsThere(Wake& wake, std::thread::id& woke) {
  co_await wake.Wait();
  woke = std::this_thread::get_id();
  co_return true;
}

TEST(Task, WhatItAwaitsIsResumedWhereItBegan) {
  ThreadExecutor there("there", 1);
  Wake wake;
  std::thread::id woke;
  std::thread other([&] { wake.Notify(); });
  EXPECT_TRUE(RunHere(On(there, WaitsThere(wake, woke))));
  EXPECT_EQ(woke, RunHere(On(there, ThreadOfIt())));
  other.join();
}

Task<absl::StatusOr<std::string>> Fails() {
  co_return absl::NotFoundError("not there");
}

Task<absl::StatusOr<int>> ReturnsEarly(bool& went_on) {
  RUNAHEAD_CO_RETURN_IF_ERROR(absl::OkStatus());
  RUNAHEAD_CO_ASSIGN_OR_RETURN(const std::string text, co_await Fails());
  went_on = true;
  co_return static_cast<int>(text.size());
}

TEST(Task, AnErrorIsReturnedEarly) {
  bool went_on = false;
  EXPECT_EQ(RunHere(ReturnsEarly(went_on)).status(), absl::NotFoundError("not there"));
  EXPECT_FALSE(went_on);
}

Task<std::unique_ptr<int>> Own(std::unique_ptr<int> what) {
  co_return what;
}

TEST(Task, WhatItNeverRanIsGivenBack) {
  auto kept = std::make_shared<int>(1);
  const auto hold = [](std::shared_ptr<int> held) -> Task<int> { co_return *held; };
  { const Task<int> never = hold(kept); }
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_EQ(*RunHere(Own(std::make_unique<int>(7))), 7);
}

}  // namespace
}  // namespace runahead
