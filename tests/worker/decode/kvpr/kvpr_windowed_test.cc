// KVPR of models with windows, over stores in which what the windows hide from decode is NaN: it is not handed off.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/test_device.h"
#include "tests/testing/windowed_model.h"
#include "tests/worker/decode/kvpr/counting_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"
#include "worker/decode/kvpr/kvpr_loop.h"

namespace runahead {
namespace {

constexpr int64_t kSteps = 4;

GivenSplit::Cut Random(int seed, int64_t most) {
  return [random = std::make_shared<std::mt19937>(seed), most](size_t, const LaneShape& shape) {
    return static_cast<int64_t>((*random)() % std::min<int64_t>(most, shape.length + 1));
  };
}

// In turn over the layers.
class KvprWindowedTest : public ::testing::TestWithParam<std::vector<int64_t>> {
 protected:
  void SetUp() override {
    RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
    loaded_ = LoadHeads(kMha);
    loaded_.model = std::make_shared<WindowedModel>(loaded_.model, GetParam());
  }
  std::vector<StepLogits> Plain(const std::vector<int64_t>& prompts) { return PlainSteps(loaded_, prompts, kSteps); }

  LoadedModel loaded_;
};

TEST_P(KvprWindowedTest, StreamedItIsBitwiseWhatPlainDecodeGives) {
  const std::vector<StepLogits> expected = Plain(Prompts());
  for (const int64_t resident_blocks : {0, 7, 64}) {
    SCOPED_TRACE(resident_blocks);
    KvprWorld kvpr(loaded_, Prompts(), kSteps);
    KvprOptions options;
    if (resident_blocks > 0) options.device_bytes = BytesWithResident(loaded_, resident_blocks);
    auto split = SplitAt(0);
    split->recompute_s = 1;  // so no X stays on the device
    kvpr.UseKvpr(std::move(split), options);
    for (int64_t step = 0; step < kSteps; ++step) ExpectSame(kvpr.Step(), expected[step]);
  }
}

TEST_P(KvprWindowedTest, RecomputedInAnyPartItIsTheSameUpToRounding) {
  const std::vector<StepLogits> expected = Plain(Prompts());
  for (const int64_t kv_from : {0, 128, 100'000}) {
    for (const int64_t resident_blocks : {0, 7, 64}) {
      SCOPED_TRACE(absl::StrCat(kv_from, ", ", resident_blocks));
      KvprWorld kvpr(loaded_, Prompts(), kSteps, /*with_x=*/true, {}, nullptr, kv_from);
      KvprOptions options;
      if (resident_blocks > 0) options.device_bytes = BytesWithResident(loaded_, resident_blocks);
      kvpr.UseKvpr(std::make_unique<GivenSplit>(Random(5, 2000)), options);
      for (int64_t step = 0; step < kSteps; ++step) ExpectClose(kvpr.Step(), expected[step]);
    }
  }
}

TEST_P(KvprWindowedTest, TheHostAttendsToPartOfIt) {
  const std::vector<int64_t> prompts = {1024, 700, 5, 300};
  const std::vector<StepLogits> expected = Plain(prompts);
  KvprWorld kvpr(loaded_, prompts, kSteps);
  KvprOptions options = WindowsOf(loaded_, 4, 8);
  options.host = &kvpr.host();
  auto split = std::make_unique<GivenSplit>(Random(7, 300), Random(8, 4));
  split->recompute_s = 1;
  kvpr.UseKvpr(std::move(split), options);
  for (int64_t step = 0; step < kSteps; ++step) ExpectClose(kvpr.Step(), expected[step]);
}

TEST_P(KvprWindowedTest, QuantisedItIsBitwiseTheSameWhereItIsResident) {
  const KvQuant quant{.bits = 8, .group = 32};
  const auto run = [&](int64_t resident_blocks) {
    KvprWorld kvpr(loaded_, Prompts(), kSteps, /*with_x=*/true, quant);
    KvprOptions options;
    if (resident_blocks > 0) options.device_bytes = 2 * BytesWithResident(loaded_, resident_blocks);
    auto split = SplitAt(0);
    split->recompute_s = 1;
    kvpr.UseKvpr(std::move(split), options);
    std::vector<StepLogits> steps;
    for (int64_t step = 0; step < kSteps; ++step) steps.push_back(kvpr.Step());
    return steps;
  };
  const std::vector<StepLogits> streamed = run(0);
  for (const StepLogits& step : streamed) {
    for (const auto& row : step) EXPECT_FALSE(std::isnan(row[0]));
  }
  EXPECT_TRUE(run(64) == streamed);
}

// Copies from the stores are of what is seen, and blocks of X that are hidden as a whole are not multiplied.
TEST_P(KvprWindowedTest, WhatIsHiddenIsNeitherCopiedNorMultiplied) {
  const auto device = std::make_shared<CountingDevice>(loaded_.device);
  const LoadedModel counted{
      loaded_.file, device,
      std::make_shared<WindowedModel>(*LoadModel(loaded_.file, device, kUsePrefill | kUseDecode, [](int, int) {}),
                                      GetParam())};
  constexpr int64_t kPrompt = 1000, kRecomputed = 512;
  KvprWorld kvpr(counted, {kPrompt}, kSteps);
  kvpr.UseKvpr(SplitAt(kRecomputed));
  device->Watch(kvpr.store());
  const KvStoreOptions& stored = kvpr.store().options();
  ASSERT_TRUE(kvpr.TryStep({0}).ok());
  kvpr.LeaveAll();
  int64_t multiplied = 0;
  for (int64_t layer = 0; layer < loaded_.model->config().layers; ++layer) {
    SCOPED_TRACE(layer);
    const int64_t window = loaded_.model->attention(layer).window;
    int64_t x = 0, kv = 0;
    for (int64_t token = 0; token < kPrompt; ++token) {
      if (window > 0 && token <= kPrompt - window) continue;
      ++(token < kRecomputed ? x : kv);
    }
    for (int64_t block = 0; block < kRecomputed; block += kKvBlockTokens) {
      if (window == 0 || block + kKvBlockTokens > kPrompt + 1 - window) multiplied += kKvBlockTokens;
    }
    // The loads of the step behind it may be enqueued as well, a position further.
    EXPECT_EQ(device->x_bytes[layer] % static_cast<size_t>(stored.x_row_bytes), 0u);
    EXPECT_LE(device->x_bytes[layer], static_cast<size_t>(2 * x * stored.x_row_bytes));
    EXPECT_GE(device->x_bytes[layer], static_cast<size_t>(x * stored.x_row_bytes));
    EXPECT_LE(device->kv_bytes[layer], static_cast<size_t>((2 * kv + 1) * stored.row_bytes));
    EXPECT_GE(device->kv_bytes[layer], static_cast<size_t>(kv * stored.row_bytes));
  }
  EXPECT_EQ(device->recomputed, multiplied);
}

INSTANTIATE_TEST_SUITE_P(Windows, KvprWindowedTest,
                         ::testing::Values(std::vector<int64_t>{1}, std::vector<int64_t>{40, 0},
                                           std::vector<int64_t>{256, 300, 257}, std::vector<int64_t>{0, 700, 900}));

}  // namespace
}  // namespace runahead
