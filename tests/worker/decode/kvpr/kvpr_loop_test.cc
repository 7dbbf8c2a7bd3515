// KVPR against plain decode over the same stores, by whatever plan.
#include "worker/decode/kvpr/kvpr_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/test_device.h"
#include "tests/worker/decode/kvpr/counting_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"

namespace runahead {
namespace {

class KvprTest : public ::testing::TestWithParam<Heads> {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(DType::kF32); }
};

void ExpectBitwisePlainDecode(const LoadedModel& loaded, const std::vector<int64_t>& budgets) {
  for (const int64_t resident_blocks : budgets) {
    SCOPED_TRACE(resident_blocks);
    KvprWorld plain(loaded, Prompts(), Steps()), kvpr(loaded, Prompts(), Steps());
    plain.UseDecodeLoop();
    KvprOptions options;
    if (resident_blocks > 0) options.device_bytes = BytesWithResident(loaded, resident_blocks);
    auto split = SplitAt(0);
    split->recompute_s = 1;  // so no X stays on the device
    const KvprLoop& loop = kvpr.UseKvpr(std::move(split), options);
    for (int64_t step = 0; step < Steps(); ++step) {
      SCOPED_TRACE(step);
      ExpectSame(kvpr.Step(), plain.Step());
    }
    EXPECT_EQ(loop.resident_bytes() > 0, resident_blocks > 0);
  }
}

TEST_P(KvprTest, WhatIsStreamedOrResidentIsBitwiseWhatPlainDecodeGives) {
  ExpectBitwisePlainDecode(LoadHeads(GetParam()), {0, 8, 12, 64});
}

TEST_P(KvprTest, RecomputationGivesTheSameUpToRounding) {
  const LoadedModel loaded = LoadHeads(GetParam());
  const std::vector<StepLogits> expected = PlainSteps(loaded, Prompts(), Steps());
  auto random = std::make_shared<std::mt19937>(5);
  const std::pair<const char*, GivenSplit::Cut> cuts[] = {
      {"one", [](size_t, const LaneShape&) { return 1; }},
      {"a tile", [](size_t, const LaneShape&) { return 64; }},
      {"all", [](size_t, const LaneShape& shape) { return shape.length; }},
      {"random tiles", [random](size_t, const LaneShape& shape) { return (*random)() % (shape.length / 64 + 1) * 64; }},
      {"random", [random](size_t, const LaneShape& shape) { return (*random)() % (shape.length + 1); }}};
  for (const auto& [name, cut] : cuts) {
    for (const int64_t resident_blocks : {0, 7}) {
      SCOPED_TRACE(std::string(name) + ", " + std::to_string(resident_blocks));
      KvprWorld kvpr(loaded, Prompts(), Steps());
      KvprOptions options;
      if (resident_blocks > 0) options.device_bytes = BytesWithResident(loaded, resident_blocks);
      kvpr.UseKvpr(std::make_unique<GivenSplit>(cut), options);
      for (int64_t step = 0; step < Steps(); ++step) {
        SCOPED_TRACE(step);
        ExpectClose(kvpr.Step(), expected[step]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, KvprTest, ::testing::Values(kMha, kGqa, kMqa, kOpt),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(Families, KvprTest, ::testing::ValuesIn(kOtherFamilies),
                         [](const auto& info) { return std::string(info.param.name); });

class KvprIn16BitsTest : public ::testing::TestWithParam<Heads> {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(DType::kBF16); }
};

TEST_P(KvprIn16BitsTest, WhatIsStreamedOrResidentIsBitwiseWhatPlainDecodeGives) {
  ExpectBitwisePlainDecode(LoadHeads(GetParam(), DType::kBF16), {0, 8});
}

INSTANTIATE_TEST_SUITE_P(Heads, KvprIn16BitsTest, ::testing::Values(kMha, kGqa),
                         [](const auto& info) { return std::string(info.param.name); });

class KvprLoopTest : public ::testing::Test {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(DType::kF32); }
};

TEST_F(KvprLoopTest, GivesTheSameInAnyCompanyAndForTheSamePlans) {
  const LoadedModel loaded = LoadHeads(kMha);
  KvprWorld together(loaded, Prompts(), Steps()), again(loaded, Prompts(), Steps()), alone(loaded, Prompts(), Steps());
  auto cut = [](size_t i, const LaneShape& shape) { return static_cast<int64_t>(64 * i) % (shape.length + 1); };
  together.UseKvpr(SplitAt(0));
  for (int64_t step = 0; step < Steps(); ++step) {
    const StepLogits all = together.Step();
    for (size_t i = 0; i < all.size(); ++i) {
      if (step == 0) alone.UseKvpr(SplitAt(0));
      EXPECT_EQ(alone.Step({i}).front(), all[i]) << i;
    }
  }
  KvprWorld first(loaded, Prompts(), Steps());
  first.UseKvpr(std::make_unique<GivenSplit>(cut));
  again.UseKvpr(std::make_unique<GivenSplit>(cut));
  for (int64_t step = 0; step < Steps(); ++step) ExpectSame(again.Step(), first.Step());
}

// A chunk of one piece, two slots: a layer is many times larger than the ring.
TEST_F(KvprLoopTest, ALayerMayBeLargerThanAllStaging) {
  const LoadedModel loaded = LoadHeads(kMha);
  KvprWorld plain(loaded, {1200, 700, 3}, 3), kvpr(loaded, {1200, 700, 3}, 3), mixed(loaded, {1200, 700, 3}, 3);
  plain.UseDecodeLoop();
  const int64_t row = loaded.model->kv_row_bytes() + 4 * loaded.model->config().hidden;
  KvprOptions options;
  options.chunk_tokens = 256;
  options.device_bytes = 5 * 256 * row;
  EXPECT_EQ(kvpr.UseKvpr(SplitAt(0), options).staging_bytes(), 2 * 256 * row);
  mixed.UseKvpr(SplitAt(320), options);
  for (int step = 0; step < 3; ++step) {
    const StepLogits expected = plain.Step();
    ExpectSame(kvpr.Step(), expected);
    ExpectClose(mixed.Step(), expected);
  }
}

TEST_F(KvprLoopTest, NothingIsReadThatThePlanDoesNotRead) {
  const LoadedModel loaded = LoadHeads(kMha);
  const std::vector<int64_t> prompts = {700, 300, 200};
  KvprWorld plain(loaded, prompts, 4), kvpr(loaded, prompts, 4);
  plain.UseDecodeLoop();
  kvpr.UseKvpr(SplitAt(128));
  for (size_t i = 0; i < prompts.size(); ++i) {
    kvpr.Poison(i, 0, 128);            // recomputed
    kvpr.PoisonX(i, 128, prompts[i]);  // streamed
  }
  for (int step = 0; step < 4; ++step) ExpectClose(kvpr.Step(), plain.Step());
  kvpr.Poison(0, 128, 129);
  EXPECT_TRUE(std::isnan(kvpr.Step({1, 0})[1][0])) << "the poison works";
}

TEST_F(KvprLoopTest, WhatIsResidentIsNotReadFromTheHostAgain) {
  const LoadedModel loaded = LoadHeads(kMha);
  const std::vector<int64_t> prompts = {700, 300, 200};
  KvprWorld plain(loaded, prompts, 6), kvpr(loaded, prompts, 6);
  plain.UseDecodeLoop();
  KvprOptions options;
  options.device_bytes = BytesWithResident(loaded, 40);
  const auto split = [] {
    auto made = SplitAt(0);
    made->recompute_s = 1;  // so no X stays on the device
    return made;
  };
  kvpr.UseKvpr(split(), options);
  ExpectSame(kvpr.Step(), plain.Step());  // all passes, and stays
  kvpr.LeaveAll();                        // what is loaded ahead is not what this is about
  kvpr.UseKvpr(split(), options);
  ExpectSame(kvpr.Step(), plain.Step());
  for (size_t i = 0; i < prompts.size(); ++i) kvpr.Poison(i, 0, kvpr.position(i));
  for (int step = 0; step < 3; ++step) ExpectSame(kvpr.Step(), plain.Step());
}

TEST_F(KvprLoopTest, SequencesComeAndGo) {
  const LoadedModel loaded = LoadHeads(kMha);
  const std::vector<int64_t> prompts = {255, 600, 300, 20};
  for (const int64_t resident_blocks : {0, 5}) {
    KvprWorld plain(loaded, prompts, 20), kvpr(loaded, prompts, 20);
    plain.UseDecodeLoop();
    KvprOptions options;
    if (resident_blocks > 0) options.device_bytes = BytesWithResident(loaded, resident_blocks);
    kvpr.UseKvpr(SplitAt(64), options);
    const std::vector<std::vector<size_t>> steps = {{0}, {0, 1}, {0, 1, 2}, {2, 1}, {2, 1, 3}, {1, 3}, {1}, {3, 1}};
    for (const std::vector<size_t>& picked : steps) ExpectClose(kvpr.Step(picked), plain.Step(picked));
    kvpr.End(1);
    for (int step = 0; step < 3; ++step) ExpectClose(kvpr.Step({3, 0}), plain.Step({3, 0}));
  }
}

// The ring holds two chunks, and a layer has more: so only copies of layer 0 run ahead of their step.
TEST_F(KvprLoopTest, MovesWhatThePlanSaysAndNothingElse) {
  const LoadedModel loaded = LoadHeads(kMha);
  for (const int64_t l : {0, 1, 192, 100'000}) {
    SCOPED_TRACE(l);
    const auto counting = std::make_shared<CountingDevice>(loaded.device);
    const LoadedModel counted{loaded.file, counting,
                              *LoadModel(loaded.file, counting, kUsePrefill | kUseDecode, [](int, int) {})};
    const std::vector<int64_t> prompts = {700, 300, 100};
    KvprWorld kvpr(counted, prompts, 3);
    const auto row = static_cast<size_t>(loaded.model->kv_row_bytes());
    const auto x_row = static_cast<size_t>(4 * loaded.model->config().hidden);
    KvprOptions options;
    options.chunk_tokens = 256;
    options.slots = 2;
    kvpr.UseKvpr(SplitAt(l), options);
    counting->Watch(kvpr.store());
    int64_t streamed = 0, recomputed = 0, computed = 0;
    for (int64_t step = 0; step < 3; ++step) {
      kvpr.Step();
      for (const int64_t prompt : prompts) {
        const int64_t of_x = std::min(l, prompt + step);
        recomputed += of_x;
        computed += RoundUpTo(kSplitTile, of_x);
        streamed += prompt + step - of_x;
      }
    }
    for (int64_t layer = 1; layer < loaded.model->config().layers; ++layer) {
      EXPECT_EQ(counting->kv_bytes[layer], static_cast<size_t>(streamed) * row);
      EXPECT_EQ(counting->x_bytes[layer], static_cast<size_t>(recomputed) * x_row);
    }
    EXPECT_EQ(counting->recomputed, computed * loaded.model->config().layers);
    EXPECT_EQ(counting->written_back, 3 * prompts.size() * loaded.model->config().layers * (row + x_row));
  }
}

TEST_F(KvprLoopTest, RefusesABudgetThatHoldsNoChunkAndSaysHowMuchIsNeeded) {
  const LoadedModel loaded = LoadHeads(kMha);
  KvprWorld kvpr(loaded, {10}, 2);
  DeviceMemory memory(loaded.device);
  KvprOptions options;
  options.max_rows = 1;
  options.device_bytes = 1000;
  const auto loop = KvprLoop::Create(*loaded.model, *loaded.device, kvpr.store(), memory.stream(), SplitAt(0), options);
  EXPECT_EQ(loop.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(loop.status().message()),
              ::testing::AllOf(::testing::HasSubstr("256 tokens"), ::testing::HasSubstr("1000 are allowed")));
}

}  // namespace
}  // namespace runahead
