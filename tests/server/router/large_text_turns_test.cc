#include "server/router/large_text_turns.h"

#include <atomic>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace runahead {
namespace {

constexpr size_t kLarge = 1 << 20;
constexpr size_t kSmall = 1 << 10;

TEST(LargeTextTurns, LargeTextsHaveTheirTurnOneByOne) {
  LargeTextTurns turns;
  CancelToken cancel;
  std::atomic<int> inside = 0, most = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        const auto turn = turns.Await(kLarge, cancel);
        EXPECT_TRUE(turn.ok());
        const int now = ++inside;
        if (now > most) most = now;
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
}

TEST(LargeTextTurns, SmallTextsNeverWait) {
  LargeTextTurns turns;
  CancelToken cancel;
  const auto large = turns.Await(kLarge, cancel);
  ASSERT_TRUE(large.ok());
  EXPECT_TRUE(turns.Await(kSmall, cancel).ok());
}

TEST(LargeTextTurns, WhoIsCancelledLeavesTheRow) {
  LargeTextTurns turns;
  CancelToken staying, leaving;
  std::optional<absl::StatusOr<LargeTextTurns::Turn>> first(turns.Await(kLarge, staying));
  auto waiting = std::async(std::launch::async, [&] { return turns.Await(kLarge, leaving).status(); });
  leaving.Cancel(absl::CancelledError("the client went away"));
  EXPECT_EQ(waiting.get(), absl::CancelledError("the client went away"));
  first.reset();
  EXPECT_TRUE(turns.Await(kLarge, staying).ok());
  EXPECT_EQ(turns.Await(kLarge, leaving).status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace runahead
