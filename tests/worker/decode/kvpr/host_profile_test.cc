#include "worker/decode/kvpr/host_profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

// What is measured of a model over such a link, by a host that is kept at 1.6 gigabits a second.
LaneCosts Measured(const SyntheticModel& small, const EmulatedLink::Options& over) {
  const auto file = *OpenGguf(WriteSynthetic(small, "host_profile"));
  const std::shared_ptr<Device> device = *NewCpuDevice({.threads = 1, .emulated_link = *EmulatedLink::Create(over)});
  const std::shared_ptr<Device> host = *NewCpuDevice({.threads = 1});
  const auto model = *LoadModel(file, device, kUseDecode, [](int, int) {});
  const std::unique_ptr<Stream> stream = host->NewStream("test");
  LaneCosts costs;
  costs.link_bytes_per_s = 1e9;
  costs.kv_bytes = static_cast<double>(model->kv_row_bytes());
  const absl::Status measured = MeasureHostLane(*model, *device, {*host, *stream, 1.6}, costs);
  EXPECT_TRUE(measured.ok()) << measured;
  return costs;
}

// On a busy machine a run takes longer than the rate says, never less; the shortest of them counts.
TEST(HostProfileTest, FindsTheRateOfTheHostAndTheLatencyOfTheLink) {
  SyntheticModel small = SmallModel(1);
  small.kv_heads = small.heads;
  const LaneCosts costs = Measured(small, {.gbps = 8, .latency = absl::Microseconds(100)});
  const double position_s = costs.kv_bytes * 8 / 1.6e9;
  EXPECT_GE(costs.host_attend_s, position_s);
  EXPECT_LT(costs.host_attend_s, 4 * position_s);
  EXPECT_GE(costs.signal_s, 200e-6) << "one way there and one back";
  EXPECT_LT(costs.signal_s, 20e-3);
  EXPECT_GT(costs.host_bytes_per_s, 1.05 * 1.6e9 / 8) << "copies ran beside it, and count";
}

TEST(HostProfileTest, MeasuresModelsWithLessKvThanACopy) {
  SyntheticModel small = SmallModel(1);
  small.heads = small.kv_heads = 1;
  small.head_dim = 8;
  small.context_length = 64;
  const LaneCosts costs = Measured(small, {.gbps = 8});
  EXPECT_GT(costs.host_attend_s, 0);
}

TEST(SharedBytesPerSecond, IsThatOfBothUnlessTheyAreAsFastAsEachAlone) {
  const SharedRun together{.attended_bytes = 40e6, .copied_bytes = 10e6, .seconds = 0.25};
  EXPECT_DOUBLE_EQ(SharedBytesPerSecond(together, 200e6, 100e6), 200e6);
  EXPECT_DOUBLE_EQ(SharedBytesPerSecond(together, 160e6, 62.5e6), 200e6) << "90% of the sum is 200.25 MB/s";
  EXPECT_EQ(SharedBytesPerSecond(together, 160e6, 62e6), INFINITY);
  EXPECT_EQ(SharedBytesPerSecond(together, 100e6, 50e6), INFINITY);
}

}  // namespace
}  // namespace runahead
