// KVPR over stores that keep KV, and X beside it, in 4 or 8 bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/test_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"
#include "worker/decode/kvpr/kvpr_loop.h"

namespace runahead {
namespace {

constexpr int64_t kSteps = 4;

struct Kept {
  std::optional<RowForm> x = {};  // of X that is quantised, too
  int64_t resident_blocks = 0, kv_from = 0;
  double recompute_s = 1;  // so long that no X stays on the device
};

class KvprQuantisedTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(DType::kF32); }

  KvQuant Quant() const { return {.bits = GetParam(), .group = 32}; }
  RowForm InAsManyBits() const { return GetParam() == 4 ? RowForm::kQ4 : RowForm::kQ8; }

  static std::vector<StepLogits> Plain(const LoadedModel& loaded) {
    KvprWorld world(loaded, Prompts(), kSteps);
    world.UseDecodeLoop();
    return Run(world);
  }
  std::vector<StepLogits> Quantised(const LoadedModel& loaded, int64_t l, const Kept& kept = {}) {
    KvprWorld world(loaded, Prompts(), kSteps, /*with_x=*/true, Quant(), nullptr, kept.kv_from, kept.x);
    auto split = SplitAt(l);
    split->recompute_s = kept.recompute_s;
    KvprOptions options;
    if (kept.resident_blocks > 0) options.device_bytes = 2 * BytesWithResident(loaded, kept.resident_blocks);
    const KvprLoop& loop = world.UseKvpr(std::move(split), options);
    std::vector<StepLogits> steps = Run(world);
    EXPECT_EQ(loop.resident_bytes() > 0, kept.resident_blocks > 0);
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
  for (const int64_t blocks : {2, 64}) {
    EXPECT_TRUE(Quantised(loaded, 0, {.resident_blocks = blocks}) == streamed) << blocks;
  }
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

// X is rounded, and KV that is made from it then once more: off by the two together, and in 8 bits by some more, for
// X's codes are symmetric there. With X on the device, some KV is there as well.
TEST_P(KvprQuantisedTest, WithXInAsManyBitsTheyAreOffByLittleMore) {
  const LoadedModel loaded = LoadHeads(kMha);
  const auto plain = Plain(loaded);
  const double most = (GetParam() == 4 ? 2 : 4) * Difference(Quantised(loaded, 0), plain);
  for (const int64_t l : {64, 100'000}) {
    const double off = Difference(Quantised(loaded, l, {.x = InAsManyBits()}), plain);
    EXPECT_NE(off, Difference(Quantised(loaded, l), plain)) << l;
    EXPECT_LT(off, most) << l;
  }
  EXPECT_LT(Difference(Quantised(loaded, 100'000, {InAsManyBits(), 16, 0, 1e-9}), plain), most);
}

TEST_P(KvprQuantisedTest, WhetherKvCameOrIsMadeFromXInAsManyBitsIsTheSame) {
  const LoadedModel loaded = LoadHeads(kMha);
  EXPECT_TRUE(Quantised(loaded, 100'000, {.x = InAsManyBits(), .kv_from = 256}) ==
              Quantised(loaded, 100'000, {.x = InAsManyBits()}));
}

INSTANTIATE_TEST_SUITE_P(Bits, KvprQuantisedTest, ::testing::Values(4, 8),
                         [](const auto& info) { return "Of" + std::to_string(info.param); });

}  // namespace
}  // namespace runahead
