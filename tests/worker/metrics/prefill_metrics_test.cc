#include "worker/metrics/prefill_metrics.h"

#include "gtest/gtest.h"
#include "tests/testing/metric_values.h"
#include "worker/metrics/link_metrics.h"

namespace runahead {
namespace {

using ::runahead::testing::CountSeries;
using ::runahead::testing::Value;

TEST(PrefillMetrics, EveryMethodMovesItsSeries) {
  MetricRegistry registry("cpu");
  PrefillMetrics metrics(registry);
  LinkMetrics link(registry, "prefill-1");
  EXPECT_EQ(CountSeries(registry, "runahead_prefill_wait_seconds_count"), 2) << "others come with their first job";
  metrics.ObserveCompute(0, absl::Seconds(1));
  metrics.ObserveWait(15, absl::Seconds(2));
  metrics.SetImbalance(1.5);
  metrics.ObserveTransfer(15, absl::Seconds(13), absl::Seconds(12));
  metrics.ObserveRingStall(absl::Seconds(3));
  metrics.ObserveHandoff(absl::Seconds(4));
  metrics.CountTokens(5);
  metrics.ObservePass(7);
  metrics.CountInterleaved();
  metrics.CountHandoffBytes(HandoffKind::kKv, 6);
  metrics.CountHandoffRetry();
  metrics.CountFrameRetry();
  metrics.CountFrameRetry();
  metrics.CountDamagedFrame();
  metrics.SetBufferBytes(8);
  link.ObserveSend(9, absl::Seconds(10));
  link.ObserveReceive(11, absl::Seconds(12));

  EXPECT_EQ(Value(registry, "runahead_prefill_compute_seconds_sum{position=\"0\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_prefill_wait_seconds_sum{position=\"15\"}"), 2);
  EXPECT_EQ(Value(registry, "runahead_prefill_transfer_seconds_sum{position=\"15\"}"), 13);
  EXPECT_EQ(Value(registry, "runahead_prefill_transfer_hidden_seconds_sum{position=\"15\"}"), 12);
  EXPECT_EQ(Value(registry, "runahead_prefill_imbalance_ratio"), 1.5);
  EXPECT_EQ(Value(registry, "runahead_prefill_ring_stall_seconds_sum"), 3);
  EXPECT_EQ(Value(registry, "runahead_handoff_seconds_sum"), 4);
  EXPECT_EQ(Value(registry, "runahead_prefill_tokens_total"), 5);
  EXPECT_EQ(Value(registry, "runahead_prefill_pass_size_sum"), 7);
  EXPECT_EQ(Value(registry, "runahead_prefill_interleaved_total"), 1);
  EXPECT_EQ(Value(registry, "runahead_handoff_bytes_total{kind=\"kv\"}"), 6);
  EXPECT_EQ(Value(registry, "runahead_handoff_bytes_total{kind=\"x\"}"), 0);
  EXPECT_EQ(Value(registry, "runahead_handoff_retries_total{cause=\"corrupt\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_link_retries_total{cause=\"corrupt\"}"), 2);
  EXPECT_EQ(Value(registry, "runahead_link_checksum_failures_total"), 1);
  EXPECT_EQ(Value(registry, "runahead_prefill_buffer_bytes"), 8);
  EXPECT_EQ(Value(registry, "runahead_link_bytes_total{direction=\"send\",peer=\"prefill-1\"}"), 9);
  EXPECT_EQ(Value(registry, "runahead_link_seconds_sum{direction=\"send\",peer=\"prefill-1\"}"), 10);
  EXPECT_EQ(Value(registry, "runahead_link_bytes_total{direction=\"receive\",peer=\"prefill-1\"}"), 11);
  EXPECT_EQ(Value(registry, "runahead_link_seconds_sum{direction=\"receive\",peer=\"prefill-1\"}"), 12);
}

TEST(LinkMetrics, NeighboursUnderEverNewNamesShareASeriesInTheEnd) {
  MetricRegistry registry("cpu");
  for (size_t i = 0; i < 2 * kMeteredPeers; ++i) {
    LinkMetrics(registry, "pod-" + std::to_string(i)).ObserveSend(1, absl::Seconds(1));
  }
  EXPECT_EQ(CountSeries(registry, "runahead_link_bytes_total"), 2 * (static_cast<int>(kMeteredPeers) + 1));
  EXPECT_EQ(Value(registry, "runahead_link_bytes_total{direction=\"send\",peer=\"pod-63\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_link_bytes_total{direction=\"send\",peer=\"other\"}"), kMeteredPeers);
}

}  // namespace
}  // namespace runahead
