#include "worker/metrics/weight_metrics.h"

#include "gtest/gtest.h"
#include "tests/testing/metric_values.h"

namespace runahead {
namespace {

using ::runahead::testing::Value;

TEST(WeightMetrics, HaveASeriesForEachForm) {
  MetricRegistry registry("cpu");
  WeightMetrics metrics(registry);
  metrics.SetBytes({.stored = 1, .packed = 2, .int8 = 3});
  EXPECT_EQ(Value(registry, "runahead_weights_bytes{form=\"stored\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_weights_bytes{form=\"packed\"}"), 2);
  EXPECT_EQ(Value(registry, "runahead_weights_bytes{form=\"int8\"}"), 3);
}

TEST(WeightsText, SaysTheFormsThatThereAreAndWhatTheyAreToTheTensors) {
  EXPECT_EQ(WeightsText({.stored = 3 << 20, .packed = 9 << 19}, 5 << 20),
            "7.5 MiB of weights, 1.50 times the tensors' 5.0 MiB: 3.0 MiB as stored, 4.5 MiB packed");
  EXPECT_EQ(WeightsText({.int8 = 5 << 20}, 5 << 20),
            "5.0 MiB of weights, 1.00 times the tensors' 5.0 MiB: 5.0 MiB int8");
}

}  // namespace
}  // namespace runahead
