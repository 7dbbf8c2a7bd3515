// KVPR over stores that keep KV in 4 or 8 bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/testing/test_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"
#include "worker/decode/kvpr/kvpr_loop.h"

namespace runahead {
namespace {

constexpr int64_t kSteps = 4;

class KvprQuantisedTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(DType::kF32); }

  KvQuant Quant() const { return {.bits = GetParam(), .group = 32}; }

  static std::vector<StepLogits> Plain(const LoadedModel& loaded) {
    KvprWorld world(loaded, Prompts(), kSteps);
    world.UseDecodeLoop();
    return Run(world);
  }
  std::vector<StepLogits> Quantised(const LoadedModel& loaded, int64_t l, int64_t resident_blocks = 0) {
    KvprWorld world(loaded, Prompts(), kSteps, /*with_x=*/true, Quant());
    auto split = SplitAt(l);
    split->recompute_s = 1;  // so no X stays on the device
    KvprOptions options;
    if (resident_blocks > 0) options.device_bytes = 2 * BytesWithResident(loaded, resident_blocks);
    const KvprLoop& loop = world.UseKvpr(std::move(split), options);
    std::vector<StepLogits> steps = Run(world);
    EXPECT_EQ(loop.resident_bytes() > 0, resident_blocks > 0);
    return steps;
  }

 private:
  static std::vector<StepLogits> Run(KvprWorld& world) {
    std::vector<StepLogits> steps;
    for (int64_t step = 0; step < kSteps; ++step) steps.push_back(world.Step());
    return steps;
  }
};

// The largest difference, as a share of the largest logit.
double Difference(const std::vector<StepLogits>& a, const std::vector<StepLogits>& b) {
  double most = 0, largest = 0;
  for (size_t step = 0; step < a.size(); ++step) {
    for (size_t row = 0; row < a[step].size(); ++row) {
      for (size_t i = 0; i < a[step][row].size(); ++i) {
        const double difference = std::abs(a[step][row][i] - b[step][row][i]);
        if (!(difference <= most)) most = difference;  // NaN too
        largest = std::max(largest, std::abs(static_cast<double>(b[step][row][i])));
      }
    }
  }
  return most / largest;
}

TEST_P(KvprQuantisedTest, WhatIsResidentIsBitwiseWhatIsStreamed) {
  const LoadedModel loaded = LoadHeads(kMha);
  const auto streamed = Quantised(loaded, 0);
  for (const int64_t blocks : {2, 64}) EXPECT_TRUE(Quantised(loaded, 0, blocks) == streamed) << blocks;
}

// A rounded value may be a whole level off, and no more: far less than all values being off by half a level.
TEST_P(KvprQuantisedTest, MovingTheSplitChangesLessThanQuantisation) {
  const LoadedModel loaded = LoadHeads(kMha);
  const auto plain = Plain(loaded), streamed = Quantised(loaded, 0);
  const double quantised = Difference(streamed, plain);
  for (const int64_t l : {1, 64, 100'000}) EXPECT_LT(Difference(Quantised(loaded, l), streamed), quantised / 4) << l;
}

TEST_P(KvprQuantisedTest, LogitsAreOffByWhatTheBitsGive) {
  const LoadedModel loaded = LoadHeads(kMha);
  const double off = Difference(Quantised(loaded, 0), Plain(loaded));
  EXPECT_GT(off, 0);
  EXPECT_LT(off, GetParam() == 4 ? 0.4 : 0.025);
}

INSTANTIATE_TEST_SUITE_P(Bits, KvprQuantisedTest, ::testing::Values(4, 8),
                         [](const auto& info) { return "Of" + std::to_string(info.param); });

}  // namespace
}  // namespace runahead
