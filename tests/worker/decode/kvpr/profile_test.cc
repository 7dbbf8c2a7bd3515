// What lanes cost, measured on a simulated GPU whose rates are known.
#include "worker/decode/kvpr/profile.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/simulated_kvpr.h"
#include "tests/testing/small_model.h"
#include "tests/testing/wrapping_device.h"

namespace runahead {
namespace {

// Where `disturbed` is not negative, something else runs for a while before each fourth reading of the clock, that one
// first.
LaneProfile Measured(const testing::SimulatedRates& rates, int64_t rows, int disturbed = -1) {
  const auto device = std::make_shared<testing::SimulatedDevice>(rates);
  const auto model =
      *LoadModel(testing::EmptyCheckpoint(testing::Opt67B(1)), device, kUseDecode | kUseRecompute, [](int, int) {});
  LaneProfileOptions options{.rows = rows,
                             .stored_row_bytes = model->kv_row_bytes(),
                             .x_row_bytes = 2 * model->config().hidden,
                             .x_form = RowForm::kBF16};
  options.now = [device, disturbed, reading = 0, late = absl::ZeroDuration()]() mutable {
    if (disturbed >= 0 && reading++ % 4 == disturbed) late += absl::Milliseconds(2);
    return device->Now() + late;
  };
  return *MeasureLanes(*model, *device, options);
}

// A thread learns 40 microseconds late that work is done, and takes 5 for each call: neither is a lane's.
TEST(LaneProfileTest, WhatEnqueueingAndWaitingTakeIsInNoRate) {
  const LaneProfile ideal = Measured({}, 64), real = Measured({.call_s = 5e-6, .sync_s = 40e-6}, 64);
  EXPECT_NEAR(real.costs.link_bytes_per_s / ideal.costs.link_bytes_per_s, 1, 0.02);
  EXPECT_NEAR(real.costs.recompute_s / ideal.costs.recompute_s, 1, 0.02);
  EXPECT_NEAR(real.costs.attend_s / ideal.costs.attend_s, 1, 0.02);
  EXPECT_NEAR(real.costs.project_s / ideal.costs.project_s, 1, 0.1);
  EXPECT_GT(real.copy_latency_s, 40e-6) << "this one is what a thread waits";
}

// Looks are at fewer and at more launches by turns, so each fourth reading ends all looks at one of them late.
TEST(LaneProfileTest, NoLaneIsFasterThanTheDeviceWhateverIsDisturbed) {
  const LaneProfile ideal = Measured({.call_s = 5e-6, .sync_s = 40e-6}, 64);
  for (int disturbed = 0; disturbed < 4; ++disturbed) {
    SCOPED_TRACE(disturbed);
    const LaneProfile profile = Measured({.call_s = 5e-6, .sync_s = 40e-6}, 64, disturbed);
    ASSERT_EQ(profile.link.size(), ideal.link.size());
    EXPECT_LT(profile.link[1].to_device, 1.3 * ideal.link[1].to_device);
    EXPECT_LT(profile.link.back().to_device, 1.3 * ideal.link.back().to_device);
    EXPECT_GT(profile.costs.attend_s, ideal.costs.attend_s / 1.3);
    EXPECT_GT(profile.costs.project_s, ideal.costs.project_s / 1.3);
    EXPECT_GT(profile.costs.recompute_s, ideal.costs.recompute_s / 1.3);
  }
}

TEST(LaneProfileTest, RatesAreThoseOfTheDevice) {
  const testing::SimulatedRates rates{.call_s = 5e-6, .sync_s = 40e-6};
  const LaneProfile profile = Measured(rates, 64);
  EXPECT_NEAR(profile.costs.link_bytes_per_s / rates.link_bytes_per_s, 1, 0.02);
  const double products = 4.0 * 4096 * 4096 / rates.flops, kv = 2.0 * 2 * 4096 / rates.memory_bytes_per_s;
  EXPECT_NEAR(profile.costs.recompute_s / products, 1, 0.05);
  EXPECT_NEAR(profile.costs.attend_s / kv, 1, 0.05);
}

// Rows that were quantised on it.
class QuantisingDevice final : public WrappingDevice {
 public:
  QuantisingDevice() : WrappingDevice(*NewCpuDevice({.threads = 1})) {}
  absl::Status QuantizeKv(Stream& stream, const ConstTensor& rows, const KvQuant& quant,
                          const BufferRef& out) override {
    quantised += rows.rows;
    return WrappingDevice::QuantizeKv(stream, rows, quant, out);
  }
  int64_t quantised = 0;
};

TEST(LaneProfileTest, WhereTheStoreQuantisesRecomputationIsMeasuredWithThat) {
  const auto device = std::make_shared<QuantisingDevice>();
  SyntheticModel small = SmallModel(1);
  small.kv_heads = small.heads;
  const auto file = *OpenGguf(WriteSynthetic(small, "kvpr_profile"));
  const auto model = *LoadModel(file, device, kUseDecode | kUseRecompute, [](int, int) {});
  LaneProfileOptions options{.stored_row_bytes = model->kv_row_bytes(), .x_row_bytes = 4 * model->config().hidden};
  ASSERT_TRUE(MeasureLanes(*model, *device, options).ok());
  EXPECT_EQ(device->quantised, 0);
  options.kv_quant = KvQuant{.bits = 4, .group = 32};
  options.stored_row_bytes = static_cast<int64_t>(KvQuantRowBytes(2 * model->config().kv_dim(), *options.kv_quant));
  const auto profile = MeasureLanes(*model, *device, options);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_GT(device->quantised, 0);
  EXPECT_GT(profile->costs.recompute_s, 0);
}

}  // namespace
}  // namespace runahead
