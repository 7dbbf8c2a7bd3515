#include "worker/link/metered_edge.h"

#include <string>

#include "kernels/base/monotonic.h"
#include "server/base/metrics.h"
#include "tests/testing/await.h"
#include "tests/testing/metric_values.h"
#include "tests/testing/patience.h"
#include "tests/worker/link/message/message_world.h"

namespace runahead {
namespace {

using ::runahead::testing::MessageWorld;
using ::runahead::testing::Pattern;
using ::runahead::testing::Room;
using ::runahead::testing::Value;

using ::runahead::testing::EdgeContract;
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EdgeContract);  // the header's, for other tests

TEST(MeteredEdge, AReceiveTakesWhatTheWireTakesNotWhatThePredecessorComputes) {
  MetricRegistry registry("cpu");  // outlives the edges' events
  MessageWorld world;
  const auto sender = *world.factory(0).Open(world.factory(1).self());
  const auto receiver =
      MeterEdge(*world.factory(1).Open(world.factory(0).self()), std::make_shared<LinkMetrics>(registry, "prefill-0"));
  EventSource computed;
  sender->Send({1, 0, 0}, Pattern(300'000, 1), computed.event());
  const Event received = receiver->Recv({1, 0, 0}, Room(300'000));
  // The predecessor computes: nothing comes.
  EXPECT_TRUE(absl::IsDeadlineExceeded(received.Wait(absl::Milliseconds(300))));
  const absl::Time released = MonotonicNow();
  computed.Fire(absl::OkStatus());
  ASSERT_TRUE(received.Wait(testing::LongestWait()).ok());
  const std::string count = "runahead_link_seconds_count{direction=\"receive\",peer=\"prefill-0\"}";
  // By the thread that fires the event.
  ASSERT_TRUE(testing::Await("the receive is counted", [&] { return Value(registry, count) >= 1; }));
  const double since_released_s = absl::ToDoubleSeconds(MonotonicNow() - released);
  EXPECT_EQ(Value(registry, count), 1);
  EXPECT_LE(Value(registry, "runahead_link_seconds_sum{direction=\"receive\",peer=\"prefill-0\"}"), since_released_s);
}

}  // namespace
}  // namespace runahead
