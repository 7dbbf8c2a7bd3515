#include "worker/metrics/decode_metrics.h"

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

  EXPECT_EQ(Value(registry, "runahead_decode_step_seconds_sum"), .5);
  EXPECT_EQ(Value(registry, "runahead_decode_batch_size_sum"), 8);
  EXPECT_EQ(Value(registry, "runahead_decode_batch_size_bucket{le=\"4\"}"), 0);
  EXPECT_EQ(Value(registry, "runahead_decode_batch_size_bucket{le=\"8\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_kv_bytes{tier=\"device\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_kv_capacity_bytes{tier=\"host\"}"), 2);
  EXPECT_EQ(Value(registry, "runahead_kv_leases"), 3);
  EXPECT_EQ(Value(registry, "runahead_kv_leases_expired_total"), 4);
  EXPECT_EQ(Value(registry, "runahead_handoff_checksum_failures_total"), 1);
}

}  // namespace
}  // namespace runahead
