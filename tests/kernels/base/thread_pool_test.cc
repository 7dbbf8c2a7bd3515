#include "kernels/base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/testing/await.h"

namespace runahead {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, RunsEveryItemOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<int> seen(count, 0);  // not atomic: each item has one thread, and the return orders them before us
    pool.ParallelFor(count, [&](int64_t i) { ++seen[i]; });
    EXPECT_EQ(seen, std::vector<int>(count, 1));
  }
}

TEST(ThreadPool, WorkersStepBackAndTheCallerDoesNot) {
  const auto nice = [] { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); };
  const int before = nice();
  if (before > 10) GTEST_SKIP() << "this process has stepped back already";
  ThreadPool pool(2, 5);
  std::vector<int> seen(2);
  std::atomic<int> running = 0;
  const std::thread::id caller = std::this_thread::get_id();
  pool.ParallelFor(2, [&](int64_t) {
    ++running;
    EXPECT_TRUE(testing::Await("either thread has an item", [&] { return running == 2; }));
    seen[std::this_thread::get_id() == caller] = nice();
  });
  EXPECT_EQ(seen[1], before);
  EXPECT_EQ(seen[0], before + 5);
}

TEST_P(ThreadPoolTest, ManyShortLoopsInARow) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> sums(5, 0);
  for (int loop = 0; loop < 20000; ++loop) {
    pool.ParallelFor(5, [&](int64_t i) { sums[i] += loop; });
  }
  EXPECT_EQ(sums, std::vector<int64_t>(5, 19999 * 10000));
}

TEST_P(ThreadPoolTest, LoopsOfSeveralCallersDoNotMix) {
  ThreadPool pool(GetParam());
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&pool, &wrong, c] {
      for (int loop = 0; loop < 500; ++loop) {
        std::vector<int> out(17 + c, -1);
        pool.ParallelFor(out.size(), [&](int64_t i) { out[i] = c * 1000 + static_cast<int>(i); });
        std::vector<int> expected(out.size());
        std::iota(expected.begin(), expected.end(), c * 1000);
        if (out != expected) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

// Calls loops that go first, from a thread of its own.
std::thread GoesFirst(const std::function<void()>& calls) {
  return std::thread([calls] {
    SetLoopKind(LoopKind::kFirst);
    calls();
  });
}

// Was: it waited for the whole loop.
TEST(ThreadPool, WhatGoesFirstDoesNotWaitForTheEndOfALongLoop) {
  ThreadPool pool(2);
  std::atomic<bool> begun = false, first_ran = false;
  std::thread first = GoesFirst([&] {
    EXPECT_TRUE(testing::Await("the long loop has begun", [&] { return begun.load(); }));
    pool.ParallelFor(8, [](int64_t) {});
    first_ran = true;
  });
  // One item of it waits for the other loop, which so comes before its end or never.
  std::atomic<int> ran = 0;
  pool.ParallelFor(1000, [&](int64_t i) {
    begun = true;
    if (i == 0) {
      EXPECT_TRUE(testing::Await("the loop that goes first is over", [&] { return first_ran.load(); }));
    }
    ++ran;
  });
  first.join();
  EXPECT_EQ(ran, 1000);
}

TEST_P(ThreadPoolTest, LoopsOfBothKindsRunEachItemOnce) {
  ThreadPool pool(GetParam());
  std::atomic<int> wrong{0};
  const auto calls = [&] {
    for (int loop = 0; loop < 2000; ++loop) {
      std::vector<int> seen(1 + loop % 40, 0);
      pool.ParallelFor(seen.size(), [&](int64_t i) { ++seen[i]; });
      if (seen != std::vector<int>(seen.size(), 1)) ++wrong;
    }
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i) callers.push_back(GoesFirst(calls));
  for (int i = 0; i < 2; ++i) callers.emplace_back(calls);
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 8));

}  // namespace
}  // namespace runahead
