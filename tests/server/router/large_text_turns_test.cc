#include "server/router/large_text_turns.h"

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/task/run_here.h"

namespace runahead {
namespace {

constexpr size_t kLarge = 1 << 20;
constexpr size_t kSmall = 1 << 10;
// Enough for a thread to come to where it waits, or to pass where it must not.
constexpr std::chrono::milliseconds kMeanwhile{200};
// Longer than anything here takes.
constexpr std::chrono::seconds kInVain{20};

TEST(LargeTextTurns, LargeTextsHaveTheirTurnOneByOne) {
  LargeTextTurns turns;
  CancelToken cancel;
  std::optional<absl::StatusOr<LargeTextTurns::Turn>> first(RunHere(turns.Await(kLarge, cancel)));
  std::atomic<int> inside = 0, most = 0;
  std::promise<void> passed;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 200; ++round) {
        const auto turn = RunHere(turns.Await(kLarge, cancel));
        EXPECT_TRUE(turn.ok());
        if (i == 0 && round == 0) passed.set_value();
        const int now = ++inside;
        if (now > most) most = now;
        --inside;
      }
    });
  }
  EXPECT_EQ(passed.get_future().wait_for(kMeanwhile), std::future_status::timeout) << "while the first had its turn";
  first.reset();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
}

TEST(LargeTextTurns, SmallTextsDoNotWaitForLargeOnes) {
  LargeTextTurns turns;
  CancelToken cancel;
  const auto large = RunHere(turns.Await(kLarge, cancel));
  ASSERT_TRUE(large.ok());
  EXPECT_TRUE(RunHere(turns.Await(kSmall, cancel)).ok());
}

TEST(LargeTextTurns, OnlySoManySmallTextsHaveTheirTurnAtOnce) {
  LargeTextTurns turns;
  CancelToken cancel;
  std::vector<absl::StatusOr<LargeTextTurns::Turn>> taken;
  constexpr size_t kLargestSmall = 64 << 10;
  for (int i = 0; i < 32; ++i) taken.push_back(RunHere(turns.Await(kLargestSmall, cancel)));
  auto waiting = std::async(std::launch::async, [&] { return RunHere(turns.Await(kLargestSmall, cancel)).status(); });
  EXPECT_EQ(waiting.wait_for(kMeanwhile), std::future_status::timeout);
  EXPECT_TRUE(RunHere(turns.Await(0, cancel)).ok());
  taken.pop_back();
  EXPECT_EQ(waiting.wait_for(kInVain), std::future_status::ready);
}

TEST(LargeTextTurns, WhoIsCancelledLeavesTheRow) {
  LargeTextTurns turns;
  CancelToken staying, leaving;
  std::optional<absl::StatusOr<LargeTextTurns::Turn>> first(RunHere(turns.Await(kLarge, staying)));
  auto waiting = std::async(std::launch::async, [&] { return RunHere(turns.Await(kLarge, leaving)).status(); });
  EXPECT_EQ(waiting.wait_for(kMeanwhile), std::future_status::timeout);
  leaving.Cancel(absl::CancelledError("the client went away"));
  EXPECT_EQ(waiting.wait_for(kInVain), std::future_status::ready) << "it goes on waiting";
  first.reset();
  EXPECT_EQ(waiting.get(), absl::CancelledError("the client went away"));
  EXPECT_TRUE(RunHere(turns.Await(kLarge, staying)).ok());
  EXPECT_EQ(RunHere(turns.Await(kLarge, leaving)).status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace runahead
