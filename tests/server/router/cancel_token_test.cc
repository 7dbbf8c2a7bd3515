#include "server/router/cancel_token.h"

#include <thread>

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(CancelToken, KeepsTheFirstReasonAndCallsEveryHookOnce) {
  CancelToken token;
  int calls = 0;
  const CancelToken::Subscription one = token.OnCancel([&] { ++calls; });
  {
    const CancelToken::Subscription gone = token.OnCancel([&] { calls += 100; });
  }
  EXPECT_TRUE(token.status().ok());
  token.Cancel(absl::CancelledError("first"));
  token.Cancel(absl::DeadlineExceededError("second"));
  EXPECT_EQ(token.status(), absl::CancelledError("first"));
  EXPECT_EQ(calls, 1);
}

TEST(CancelToken, CallsAHookAtOnceWhenItIsCancelledAlready) {
  CancelToken token;
  token.Cancel(absl::CancelledError(""));
  int calls = 0;
  const CancelToken::Subscription late = token.OnCancel([&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(CancelToken, NoHookRunsOnceItsSubscriptionIsGone) {
  for (int round = 0; round < 200; ++round) {
    CancelToken token;
    std::thread canceller([&token] { token.Cancel(absl::CancelledError("")); });
    {
      auto alive = std::make_unique<int>(1);
      const CancelToken::Subscription hook = token.OnCancel([&alive] { ++*alive; });
    }
    canceller.join();
  }
}

}  // namespace
}  // namespace runahead
