#include "worker/prefill/prefill_port.h"

#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "tests/testing/chain_fixture.h"
#include "tests/testing/small_model.h"

namespace runahead {
namespace {

TEST(PrefillPort, TransferIsWhatTheWireTakesNotWhatThePredecessorComputes) {
  const LoadedModel loaded = LoadForTest(WriteSynthetic(SmallModel(), "prefill_port"), DType::kF32, 2);
  TestChain chain(loaded, 2, 60, 0, LoopbackNetwork::Delivery::kManual);
  chain.Start(1, 0, {0, 40, 60}, RandomIds(60, 320, 23));
  chain.member(1).trace.Await(1, 0, TracePoint::kHandedOff);  // its own KV is there: it waits
  // So long nothing comes, as when the head still computes.
  EXPECT_TRUE(absl::IsDeadlineExceeded(EventSource().event().Wait(absl::Milliseconds(200))));
  const absl::Time released = MonotonicNow();
  while (!chain.member(0).news.done(1) || !chain.member(1).news.done(1)) chain.network().DeliverAll();
  const double since_released_s = absl::ToDoubleSeconds(MonotonicNow() - released);
  const JobTimes head = chain.member(0).news.times(1), tail = chain.member(1).news.times(1);
  EXPECT_GT(tail.transfer_s, 0);
  EXPECT_LE(tail.transfer_s, since_released_s);
  EXPECT_LE(tail.hidden_s, tail.transfer_s);
  EXPECT_LE(tail.transfer_s - tail.hidden_s, tail.wait_s);
  EXPECT_EQ(head.transfer_s, 0);
  EXPECT_EQ(head.hidden_s, 0);
}

}  // namespace
}  // namespace runahead
