#include "server/rpc/own_echo.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/testing/busy_callbacks.h"

namespace runahead {
namespace {

using testing::BusyCallbacks;

// Time that the test makes: a moment later with each question.
class OwnEchoTest : public ::testing::Test {
 protected:
  absl::Time Ask() { return echo_->Until(now_ += absl::Milliseconds(1)); }
  // Until what had come by `moment` has been heard.
  void AwaitHeard(absl::Time moment) {
    while (Ask() < moment) {
    }
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  const std::unique_ptr<OwnEcho> echo_ = *OwnEcho::Create();
};

TEST_F(OwnEchoTest, HearsAllOnceItHasCalledItself) {
  const absl::Time before = now_;
  EXPECT_EQ(Ask(), absl::InfinitePast()) << "it has not called itself yet";
  AwaitHeard(before);
  AwaitHeard(now_);
  EXPECT_LE(Ask(), now_);
}

TEST_F(OwnEchoTest, HearsNothingWhileGrpcsThreadsAreHeldUp) {
  AwaitHeard(now_);
  auto busy = std::make_unique<BusyCallbacks>();
  // At most the call that was under way has come back.
  const absl::Time held_up_at = now_;
  for (int i = 0; i < 100'000; ++i) ASSERT_LE(Ask(), held_up_at);
  busy.reset();
  AwaitHeard(held_up_at + absl::Milliseconds(1));
}

TEST_F(OwnEchoTest, EndsWithACallUnderWay) {
  Ask();
}

}  // namespace
}  // namespace runahead
