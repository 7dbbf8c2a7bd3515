#include "kernels/base/event.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace runahead {
namespace {

TEST(Event, DefaultConstructedHasFired) {
  Event event;
  EXPECT_TRUE(event.fired());
  EXPECT_TRUE(event.Wait().ok());
  int calls = 0;
  event.OnFire([&](const absl::Status& status) { calls += status.ok(); });
  EXPECT_EQ(calls, 1);
}

TEST(Event, FiresOnceAndKeepsTheFirstStatus) {
  EventSource source;
  Event event = source.event();
  std::vector<absl::Status> seen;
  event.OnFire([&](const absl::Status& status) { seen.push_back(status); });
  EXPECT_FALSE(event.fired());
  EXPECT_FALSE(event.status().has_value());
  EXPECT_TRUE(source.Fire(absl::DataLossError("bad slice")));
  EXPECT_FALSE(source.Fire(absl::OkStatus()));
  event.OnFire([&](const absl::Status& status) { seen.push_back(status); });
  EXPECT_THAT(seen, ::testing::ElementsAre(absl::DataLossError("bad slice"), absl::DataLossError("bad slice")));
  EXPECT_EQ(event.Wait(), absl::DataLossError("bad slice"));
}

// Events are kept by jobs and links, and go on threads where nothing of a device may end.
TEST(Event, LetsGoOfTheNativeEventOnTheThreadThatFires) {
  auto native = std::make_shared<NativeEvent>();
  const std::weak_ptr<NativeEvent> alive = native;
  const EventSource source(std::move(native));
  const Event event = source.event();
  EXPECT_EQ(event.native(), alive.lock());
  source.Fire(absl::OkStatus());
  EXPECT_TRUE(alive.expired());
  EXPECT_EQ(event.native(), nullptr);
}

TEST(Event, LastSourceGoneMeansAborted) {
  Event event;
  {
    EventSource source;
    event = source.event();
    EventSource copy = source;
  }
  EXPECT_EQ(event.Wait().code(), absl::StatusCode::kAborted);
}

TEST(Event, WaitEndsAtItsDeadlineAndTheEventLivesOn) {
  EventSource source;
  EXPECT_EQ(source.event().Wait(absl::Milliseconds(1)).code(), absl::StatusCode::kDeadlineExceeded);
  source.Fire(absl::OkStatus());
  EXPECT_TRUE(source.event().Wait(absl::ZeroDuration()).ok());
}

TEST(Event, WaitersOnOtherThreadsWakeUp) {
  EventSource source;
  std::atomic<int> woken{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back([event = source.event(), &woken] { woken += event.Wait().code() == absl::StatusCode::kOk; });
  }
  source.Fire(absl::OkStatus());
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(woken, 4);
}

TEST(Event, ACallbackMayReleaseTheEventItself) {
  auto source = std::make_unique<EventSource>();
  source->event().OnFire([&](const absl::Status&) { source.reset(); });
  source->Fire(absl::OkStatus());
  EXPECT_EQ(source, nullptr);
}

TEST(WhenAll, OfNothingHasFired) {
  EXPECT_TRUE(WhenAll({}).fired());
}

TEST(WhenAll, FiresAfterTheLastWithTheFirstFailureOfTheList) {
  EventSource a, b, c;
  Event all = WhenAll({a.event(), b.event(), c.event()});
  c.Fire(absl::InternalError("c"));
  EXPECT_FALSE(all.fired());
  b.Fire(absl::UnavailableError("b"));
  EXPECT_FALSE(all.fired());
  a.Fire(absl::OkStatus());
  EXPECT_EQ(all.Wait(), absl::UnavailableError("b"));
}

}  // namespace
}  // namespace runahead
