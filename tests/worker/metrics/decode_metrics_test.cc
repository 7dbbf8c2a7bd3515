#include "worker/metrics/decode_metrics.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/base/limits.h"
#include "tests/testing/metric_values.h"

namespace runahead {
namespace {

using ::runahead::testing::Value;

// The largest batch and the longest context that there may be are within the last bounds.
TEST(DecodeMetrics, BucketsReachTheMostThatMayBe) {
  MetricRegistry registry("cpu");
  DecodeMetrics metrics(registry);
  metrics.ObserveStep(kMostBatch, absl::Seconds(1));
  KvprObservation step;
  step.split_tokens = static_cast<double>(kMostContext);
  metrics.ObserveKvpr(step);
  EXPECT_EQ(Value(registry, absl::StrCat("runahead_decode_batch_size_bucket{le=\"", kMostBatch, "\"}")), 1);
  EXPECT_EQ(Value(registry, absl::StrCat("runahead_kvpr_split_tokens_bucket{le=\"", kMostContext, "\"}")), 1);
}

TEST(DecodeMetrics, EveryMethodMovesItsSeries) {
  MetricRegistry registry("cpu");
  DecodeMetrics metrics(registry);
  metrics.ObserveStep(8, absl::Milliseconds(500));
  metrics.SetKvBytes(KvTier::kDevice, 1);
  metrics.SetKvCapacityBytes(KvTier::kHost, 2);
  metrics.SetLeases(3);
  metrics.CountLeasesExpired(4);
  metrics.CountChecksumFailure();
  metrics.CountSaturated(5);
  metrics.CountPromptRows(16);
  metrics.SetKvPromisedBytes(KvTier::kHost, 17);
  metrics.SetKvKeptBytes(KvTier::kHost, 20);
  metrics.CountKvEvicted(KvTier::kDevice, 21);
  metrics.SetParked(18);
  metrics.CountParking();
  metrics.CountRebuilt(19);
  metrics.CountLateMasks(22);
  metrics.CountSlice(SliceAnswer::kNoLease);
  metrics.CountHandoff(HandoffKind::kKv, 40, 30);
  metrics.CountHandoff(HandoffKind::kX, 20, 10);
  metrics.SetLinkBandwidth(6);
  metrics.SetLanes({7, 8, 9, 10, 11, 12});
  metrics.SetLinkRate(1 << 20, 13, 14);
  metrics.SetLinkLatency(15);
  KvprObservation step;
  step.split_tokens = 128;
  step.recompute_s = .25;
  step.transfer_s = .75;
  step.overlap_ratio = .95;
  step.predicted_s = 1.5;
  step.measured_s = 1.75;
  step.bound = LaneBound::kHostMemory;
  step.rest = SplitRest::kNoGain;
  for (int lane = 0; lane < kKvLanes; ++lane) step.lanes[lane] = {10 + lane, 20 + lane, 30.0 + lane};
  metrics.ObserveKvpr(step);

  EXPECT_EQ(Value(registry, "runahead_decode_step_seconds_sum"), .5);
  EXPECT_EQ(Value(registry, "runahead_decode_batch_size_sum"), 8);
  EXPECT_EQ(Value(registry, "runahead_decode_batch_size_bucket{le=\"4\"}"), 0);
  EXPECT_EQ(Value(registry, "runahead_decode_batch_size_bucket{le=\"8\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_static_window_saturated_values_total"), 5);
  EXPECT_EQ(Value(registry, "runahead_decode_prompt_tokens_total"), 16);
  EXPECT_EQ(Value(registry, "runahead_decode_parked_requests"), 18);
  EXPECT_EQ(Value(registry, "runahead_decode_parkings_total"), 1);
  EXPECT_EQ(Value(registry, "runahead_decode_rebuilt_tokens_total"), 19);
  EXPECT_EQ(Value(registry, "runahead_decode_late_masks_total"), 22);
  EXPECT_EQ(Value(registry, "runahead_kv_promised_bytes{tier=\"host\"}"), 17);
  EXPECT_EQ(Value(registry, "runahead_kv_kept_bytes{tier=\"host\"}"), 20);
  EXPECT_EQ(Value(registry, "runahead_kv_kept_evicted_bytes_total{tier=\"device\"}"), 21);
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
  EXPECT_EQ(Value(registry, "runahead_kvpr_step_seconds_total{kind=\"predicted\"}"), 1.5);
  EXPECT_EQ(Value(registry, "runahead_kvpr_step_seconds_total{kind=\"measured\"}"), 1.75);
  EXPECT_EQ(Value(registry, "runahead_kvpr_bound_steps_total{by=\"host_memory\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_kvpr_bound_steps_total{by=\"link\"}"), 0);
  EXPECT_EQ(Value(registry, "runahead_kvpr_rest_steps_total{reason=\"no_gain\"}"), 1);
  const char* const lanes[] = {"recomputed", "streamed", "host", "resident"};
  for (int lane = 0; lane < kKvLanes; ++lane) {
    const std::string label = std::string("{lane=\"") + lanes[lane] + "\"}";
    EXPECT_EQ(Value(registry, "runahead_kvpr_lane_tokens_total" + label), 10 + lane);
    EXPECT_EQ(Value(registry, "runahead_kvpr_lane_bytes_total" + label), 20 + lane);
    EXPECT_EQ(Value(registry, "runahead_kvpr_lane_seconds_total" + label), 30 + lane);
  }
}

TEST(DecodeMetrics, TheLinksBandwidthIsWhatTheLastStepThatUsedItHadOfIt) {
  MetricRegistry registry("cpu");
  DecodeMetrics metrics(registry);
  metrics.SetLinkBandwidth(300);
  KvprObservation step;
  metrics.ObserveKvpr(step);
  EXPECT_EQ(Value(registry, "runahead_link_bandwidth_bytes_per_second"), 300) << "nothing was copied";
  step.link_bytes_per_s = 500;
  metrics.ObserveKvpr(step);
  metrics.SetLanes({7, 8, 9, 10, 11, 12});
  EXPECT_EQ(Value(registry, "runahead_link_bandwidth_bytes_per_second"), 500);
}

}  // namespace
}  // namespace runahead
