#include "worker/metrics/decode_metrics.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/testing/metric_values.h"

namespace runahead {
namespace {

using ::runahead::testing::Value;

TEST(DecodeMetrics, EveryMethodMovesItsSeries) {
  MetricRegistry registry("cpu");
  DecodeMetrics metrics(registry);
  metrics.ObserveStep(8, absl::Milliseconds(500));
  metrics.SetKvBytes(KvTier::kDevice, 1);
  metrics.SetKvCapacityBytes(KvTier::kHost, 2);
  metrics.SetLeases(3);
  metrics.CountLeasesExpired(4);
  metrics.CountChecksumFailure();
  metrics.CountSlice(SliceAnswer::kNoLease);
  metrics.CountHandoff(HandoffKind::kKv, 40, 30);
  metrics.CountHandoff(HandoffKind::kX, 20, 10);
  metrics.SetLanes({6, 7, 8, 9, 10, 11, 12});
  metrics.SetLinkRate(1 << 20, 13, 14);
  metrics.SetLinkLatency(15);
  KvprObservation step;
  step.split_tokens = 128;
  step.recompute_s = .25;
  step.transfer_s = .75;
  step.overlap_ratio = .95;
  for (int lane = 0; lane < kKvLanes; ++lane) step.lanes[lane] = {10 + lane, 20 + lane, 30.0 + lane};
  metrics.ObserveKvpr(step);

  EXPECT_EQ(Value(registry, "runahead_decode_step_seconds_sum"), .5);
  EXPECT_EQ(Value(registry, "runahead_decode_batch_size_sum"), 8);
  EXPECT_EQ(Value(registry, "runahead_decode_batch_size_bucket{le=\"4\"}"), 0);
  EXPECT_EQ(Value(registry, "runahead_decode_batch_size_bucket{le=\"8\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_kv_bytes{tier=\"device\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_kv_capacity_bytes{tier=\"host\"}"), 2);
  EXPECT_EQ(Value(registry, "runahead_kv_leases"), 3);
  EXPECT_EQ(Value(registry, "runahead_kv_leases_expired_total"), 4);
  EXPECT_EQ(Value(registry, "runahead_handoff_checksum_failures_total"), 1);
  EXPECT_EQ(Value(registry, "runahead_handoff_slices_total{verdict=\"no_lease\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_handoff_slices_total{verdict=\"accepted\"}"), 0);
  EXPECT_EQ(Value(registry, "runahead_handoff_expected_bytes_total{kind=\"kv\"}"), 40);
  EXPECT_EQ(Value(registry, "runahead_handoff_received_bytes_total{kind=\"kv\"}"), 30);
  EXPECT_EQ(Value(registry, "runahead_handoff_expected_bytes_total{kind=\"x\"}"), 20);
  EXPECT_EQ(Value(registry, "runahead_handoff_received_bytes_total{kind=\"x\"}"), 10);
  EXPECT_EQ(Value(registry, "runahead_link_bandwidth_bytes_per_second"), 6);
  EXPECT_EQ(Value(registry, "runahead_kvpr_layer_seconds{work=\"project\"}"), 7);
  EXPECT_EQ(Value(registry, "runahead_kvpr_position_seconds{work=\"recompute\"}"), 8);
  EXPECT_EQ(Value(registry, "runahead_kvpr_position_seconds{work=\"attend\"}"), 9);
  EXPECT_EQ(Value(registry, "runahead_kvpr_layer_seconds{work=\"signal\"}"), 10);
  EXPECT_EQ(Value(registry, "runahead_kvpr_host_bytes_per_second{beside=\"nothing\"}"), 11);
  EXPECT_EQ(Value(registry, "runahead_kvpr_host_bytes_per_second{beside=\"copies\"}"), 12);
  const std::string block = "runahead_link_copy_bytes_per_second{block_bytes=\"1048576\",direction=";
  EXPECT_EQ(Value(registry, block + "\"to_device\"}"), 13);
  EXPECT_EQ(Value(registry, block + "\"to_host\"}"), 14);
  EXPECT_EQ(Value(registry, "runahead_link_copy_latency_seconds"), 15);
  EXPECT_EQ(Value(registry, "runahead_kvpr_split_tokens_sum"), 128);
  EXPECT_EQ(Value(registry, "runahead_kvpr_recompute_seconds_sum"), .25);
  EXPECT_EQ(Value(registry, "runahead_kvpr_transfer_seconds_sum"), .75);
  EXPECT_EQ(Value(registry, "runahead_kvpr_overlap_ratio_bucket{le=\"0.9\"}"), 0);
  EXPECT_EQ(Value(registry, "runahead_kvpr_overlap_ratio_bucket{le=\"1\"}"), 1);
  const char* const lanes[] = {"recomputed", "streamed", "host", "resident"};
  for (int lane = 0; lane < kKvLanes; ++lane) {
    const std::string label = std::string("{lane=\"") + lanes[lane] + "\"}";
    EXPECT_EQ(Value(registry, "runahead_kvpr_lane_tokens_total" + label), 10 + lane);
    EXPECT_EQ(Value(registry, "runahead_kvpr_lane_bytes_total" + label), 20 + lane);
    EXPECT_EQ(Value(registry, "runahead_kvpr_lane_seconds_total" + label), 30 + lane);
  }
}

}  // namespace
}  // namespace runahead
