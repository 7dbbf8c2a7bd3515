// KVPR over the CPU device's emulated link, which lets no op read host memory.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/kernels/cpu/manual_clock.h"
#include "tests/testing/small_model.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"
#include "worker/decode/kvpr/profile.h"
#include "worker/decode/kvpr/weight_stream.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

// With recomputation as decode workers have it.
LoadedModel LoadOver(std::shared_ptr<EmulatedLink> link, SyntheticFamily family) {
  SyntheticModel model = SmallModel(2);
  model.kv_heads = model.heads;
  model.family = family;
  LoadedModel loaded;
  loaded.file = *OpenGguf(WriteSynthetic(model, "kvpr_link"));
  loaded.device = *NewCpuDevice({.threads = 2, .emulated_link = std::move(link)});
  loaded.model = *LoadModel(loaded.file, loaded.device, kUseDecode | kUseRecompute, [](int, int) {});
  return loaded;
}

class KvprLinkTest : public testing::TestWithParam<SyntheticFamily> {
 protected:
  const std::shared_ptr<EmulatedLink> link_ = *EmulatedLink::Create({.gbps = 10});
};

TEST_P(KvprLinkTest, GivesBitwiseWhatItGivesWithoutALink) {
  const LoadedModel linked = LoadOver(link_, GetParam()), plain = LoadOver(nullptr, GetParam());
  const std::vector<int64_t> prompts = {1, 255, 300, 700};
  for (const int64_t l : {0, 128, 1024}) {
    for (const int64_t device_bytes : {0, 6 << 20}) {
      SCOPED_TRACE(std::to_string(l) + ", " + std::to_string(device_bytes));
      KvprWorld over(linked, prompts, 4), without(plain, prompts, 4);
      KvprOptions options;
      options.device_bytes = device_bytes;
      const KvprLoop& loop = over.UseKvpr(SplitAt(l), options);
      without.UseKvpr(SplitAt(l), options);
      for (int step = 0; step < 4; ++step) {
        ASSERT_TRUE(link_->SetRate(step % 2 == 0 ? 100 : 2).ok());
        EXPECT_EQ(over.Step(), without.Step()) << step;
      }
      EXPECT_EQ(loop.resident_bytes() > 0, device_bytes > 0);
    }
  }
}

// What decode workers take for the link's rate is what the link has. Only copies move this clock: the thread that
// measures reads it when none is on its way.
TEST_P(KvprLinkTest, TheProfileMeasuresTheLink) {
  ManualClock manual;
  const LoadedModel linked = LoadOver(
      *EmulatedLink::Create({.gbps = 0.8, .latency = absl::Microseconds(10), .clock = manual.clock()}), GetParam());
  const auto profile = MeasureLanes(*linked.model, *linked.device,
                                    {.rows = 2,
                                     .stored_row_bytes = linked.model->kv_row_bytes(),
                                     .x_row_bytes = 4 * linked.model->config().hidden,
                                     .now = [&manual] { return manual.now; }});
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_NEAR(profile->copy_latency_s, 10e-6, 1e-6) << "and a few bytes";
  ASSERT_EQ(profile->link.size(), 3u);
  for (const LinkRate& rate : profile->link) {
    const auto bytes = static_cast<double>(rate.block_bytes);
    const double expected = bytes / (bytes / 1e8 + 10e-6);
    EXPECT_NEAR(rate.to_device, expected, 1e-3 * expected) << rate.block_bytes;
    EXPECT_NEAR(rate.to_host, expected, 1e-3 * expected) << rate.block_bytes;
  }
  EXPECT_EQ(profile->costs.link_bytes_per_s, profile->link.back().to_device);
}

// As the rate is, more sizes are measured, or fewer.
TEST_P(KvprLinkTest, ALinkIsMeasuredAgainBySizesItWasMeasuredWith) {
  const LoadedModel linked = LoadOver(link_, GetParam());
  LaneProfile profile;
  profile.link = {{64 << 10, 1e6, 2e6}};
  profile.costs.link_bytes_per_s = 1e6;
  ASSERT_EQ(MeasureLinkAgain(*linked.model, *linked.device, profile), absl::OkStatus());
  ASSERT_EQ(profile.link.size(), 1u);
  const double now = profile.link[0].to_device;
  EXPECT_GT(now, 0);
  EXPECT_DOUBLE_EQ(profile.costs.link_bytes_per_s, now);
  profile.link = {{64 << 10, now, now}, {1 << 20, now, now}, {16 << 20, 8 * now, 8 * now}};
  ASSERT_EQ(MeasureLinkAgain(*linked.model, *linked.device, profile), absl::OkStatus());
  ASSERT_EQ(profile.link.size(), 3u);
  EXPECT_NEAR(profile.link[2].to_device, 8 * profile.link[1].to_device, 1e-6 * profile.link[2].to_device);
}

// Two layers of weights, staging and what all layers share are on the device, and no more.
TEST(KvprBudgetTest, AModelLargerThanTheDeviceDecodesAsOneThatFits) {
  constexpr unsigned kUses = kUseDecode | kUseRecompute;
  LoadedModel all;
  all.file = *OpenGguf(WriteSynthetic(WideModel(), "kvpr_wide"));
  all.device = *NewCpuDevice({.threads = 2});
  all.model = *LoadModel(all.file, all.device, kUses, [](int, int) {});
  LoadedModel large{.file = all.file, .device = nullptr, .model = nullptr};
  large.device =
      *NewCpuDevice({.threads = 2, .memory_budget = 32 << 20, .emulated_link = *EmulatedLink::Create({.gbps = 100})});
  const auto resident = LoadModel(large.file, large.device, kUses, [](int, int) {});
  EXPECT_EQ(resident.status().code(), absl::StatusCode::kResourceExhausted) << resident.status();
  large.model = *LoadModel(large.file, large.device, kUses | kUseStreamed, [](int, int) {});
  const size_t left = large.device->memory_left();
  KvprWorld plain(all, {300, 100}, 3), world(large, {300, 100}, 3, true, {}, &all);
  KvprOptions options;
  plain.UseKvpr(SplitAt(64), options);
  options.device_bytes = WeightStream::DeviceBytes(*large.model) + (4 << 20);
  const KvprLoop& loop = world.UseKvpr(SplitAt(64), options);
  EXPECT_LE(left - large.device->memory_left(), static_cast<size_t>(options.device_bytes));
  EXPECT_LE(loop.device_bytes(), options.device_bytes);
  for (int step = 0; step < 3; ++step) EXPECT_EQ(world.Step(), plain.Step()) << step;
}

INSTANTIATE_TEST_SUITE_P(Families, KvprLinkTest, testing::ValuesIn(kSyntheticFamilies),
                         [](const auto& info) { return std::string(ArchitectureOf(info.param)); });

}  // namespace
}  // namespace runahead
