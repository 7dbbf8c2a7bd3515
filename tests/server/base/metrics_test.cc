#include "server/base/metrics.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/limits.h"
#include "tests/testing/metric_values.h"

namespace runahead {
namespace {

using ::runahead::testing::Types;
using ::runahead::testing::Value;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

TEST(MetricRegistry, HasProcessMetricsAndBuildInfo) {
  MetricRegistry registry("cpu");
  EXPECT_THAT(Types(registry),
              IsSupersetOf({"runahead_build_info gauge", "process_cpu_seconds_total counter",
                            "process_resident_memory_bytes gauge", "process_open_fds gauge",
                            "process_start_time_seconds gauge", "runahead_log_lines_dropped_total counter"}));
  EXPECT_THAT(registry.Serialize(), AllOf(HasSubstr("device=\"cpu\""), HasSubstr("version=\"")));
  EXPECT_GT(Value(registry, "process_resident_memory_bytes"), 1e6);
  EXPECT_GE(Value(registry, "process_open_fds"), 3);
  // After 2020, and not in the future.
  EXPECT_GT(Value(registry, "process_start_time_seconds"), 1577836800);
  EXPECT_LE(Value(registry, "process_start_time_seconds"), static_cast<double>(time(nullptr)) + 1);
}

TEST(MetricRegistry, TheSameNameAndLabelsAreTheSameMetric) {
  MetricRegistry registry("none");
  registry.AddCounter("x_total", "X", {{"a", "1"}}).Increment(2);
  registry.AddCounter("x_total", "X", {{"a", "1"}}).Increment(3);
  registry.AddCounter("x_total", "X", {{"a", "2"}});
  EXPECT_EQ(Value(registry, "x_total{a=\"1\"}"), 5);
  EXPECT_EQ(Value(registry, "x_total{a=\"2\"}"), 0);
}

TEST(MetricRegistry, HostileLabelValuesStayOneLine) {
  MetricRegistry registry("none");
  registry.AddCounter("x_total", "X", {{"peer", "a\"b\\c\nd"}});
  EXPECT_THAT(registry.Serialize(), HasSubstr("x_total{peer=\"a\\\"b\\\\c\\nd\"} 0"));
}

TEST(MetricRegistry, ValuesFromOutsideAreBounded) {
  MetricRegistry registry("none");
  EXPECT_EQ(registry.Bounded("peer", "a", 2), "a");
  EXPECT_EQ(registry.Bounded("peer", "b", 2), "b");
  EXPECT_EQ(registry.Bounded("peer", "c", 2), "other");
  EXPECT_EQ(registry.Bounded("peer", "a", 2), "a");
  EXPECT_EQ(registry.Bounded("tenant", "c", 2), "c") << "each label counts for itself";
}

// A request that takes minutes is legal. That no option gives more patience: options_test.
TEST(Buckets, OfLatenciesReachAsFarAsAnythingMayTake) {
  for (const std::vector<double>& bounds : {TtftBuckets(), TokenBuckets()}) {
    EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end()));
    EXPECT_EQ(bounds.back(), absl::ToDoubleSeconds(kLongestLatency));
    for (size_t i = 1; i < bounds.size(); ++i) EXPECT_LE(bounds[i], 10 * bounds[i - 1]);
  }
  MetricRegistry registry("none");
  Histogram& histogram = registry.AddHistogram("y_seconds", "Y", TtftBuckets());
  histogram.Observe(78);
  EXPECT_EQ(Value(registry, "y_seconds_bucket{le=\"60\"}"), 0);
  EXPECT_EQ(Value(registry, "y_seconds_bucket{le=\"120\"}"), 1);
}

TEST(Buckets, OfPowersOfTwoReachTheMost) {
  EXPECT_EQ(PowerOfTwoBuckets(1), std::vector<double>({1}));
  EXPECT_EQ(PowerOfTwoBuckets(5), std::vector<double>({1, 2, 4, 8}));
  EXPECT_EQ(PowerOfTwoBuckets(8), std::vector<double>({1, 2, 4, 8}));
}

TEST(MetricRegistry, CountsFromManyThreads) {
  MetricRegistry registry("none");
  Counter& counter = registry.AddCounter("x_total", "X");
  Histogram& histogram = registry.AddHistogram("y_seconds", "Y", TokenBuckets());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 1000; ++k) {
        counter.Increment();
        histogram.Observe(.001);
        if (k % 250 == 0) registry.Serialize();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Value(registry, "x_total"), 4000);
  EXPECT_EQ(Value(registry, "y_seconds_count"), 4000);
}

}  // namespace
}  // namespace runahead
