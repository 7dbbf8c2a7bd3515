// KVPR steps with several rows of a sequence, against KVPR steps with one, by the same l: logits and what is written
// through to the stores, to the bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/test_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"

namespace runahead {
namespace {

// Behind l, and before and at borders of blocks, which rows of a step cross.
const std::vector<int64_t> kPrompts = {250, 509, 300, 768, 700};
constexpr int64_t kRows = 24;

std::vector<std::vector<NextRows>> RowSteps() {
  std::vector<std::vector<NextRows>> steps = {
      {{0, 3}, {1, 6}, {2, 1}, {3, 2}},
      {{4, 1}, {3, 1}, {1, 2, {false, true}}},
      {{0, 5, {false, false, true, false, true}}, {4, 2}},
      {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}},
      {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}},
  };
  if (TestDeviceIsSlow()) return steps;
  steps.insert(steps.begin(), {{{4, 16}, {0, 2}, {2, 2, {false, false}}}, {{1, 1}, {2, 16, std::vector<bool>(16)}}});
  return steps;
}

struct RowsCase {
  const char* name;
  Heads heads = kMha;
  int64_t l = 0;
  std::optional<KvQuant> quant = {};
  int64_t resident_blocks = 0;  // of all windows; 0: none
  int64_t host_pieces = 0;      // of a sequence
  int64_t kv_from = 0;
};
void PrintTo(const RowsCase& of, std::ostream* out) {
  *out << of.name;
}

class KvprRowsTest : public ::testing::TestWithParam<RowsCase> {
 protected:
  void SetUp() override {
    RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
    loaded_ = LoadHeads(GetParam().heads);
  }
  std::unique_ptr<KvprWorld> NewWorld() {
    const RowsCase& of = GetParam();
    auto world = std::make_unique<KvprWorld>(loaded_, kPrompts, kRows, /*with_x=*/true, of.quant, nullptr, of.kv_from);
    auto split = std::make_unique<GivenSplit>([&of](size_t, const LaneShape&) { return of.l; },
                                              [&of](size_t, const LaneShape&) { return of.host_pieces; });
    split->recompute_s = 1;  // so no X stays on the device
    KvprOptions options;
    options.max_rows = kRows;
    options.chunk_tokens = 256;  // so that rows of a step lie in several
    options.slots = 2;
    if (of.resident_blocks > 0) options.device_bytes = BytesFor(of);
    if (of.host_pieces > 0) options.host = &world->host();
    options.on_step = [this](const KvprStep& step) {
      for (const LaneCuts& cuts : step.plan.cuts) on_host_ += cuts.host_end - cuts.streamed_end;
      recomputed_ += step.plan.rows.recomputed;
      resident_ += step.plan.rows.resident;
    };
    world->UseKvpr(std::move(split), options);
    return world;
  }
  int64_t BytesFor(const RowsCase& of) const {
    const int64_t bytes = WindowsOf(loaded_, kRows, of.resident_blocks).device_bytes;
    return of.quant.has_value() ? 2 * bytes : bytes;
  }
  LoadedModel loaded_;
  int64_t on_host_ = 0, recomputed_ = 0, resident_ = 0;
};

TEST_P(KvprRowsTest, SeveralRowsOfASequenceGiveBitwiseWhatOneAStepGives) {
  const RowsCase& of = GetParam();
  // Which rows the host attends differs between these steps, and it computes otherwise than a GPU.
  const bool bitwise = of.host_pieces == 0 || FormOfTestDevice() == TestDeviceForm::kCpu;
  const std::unique_ptr<KvprWorld> together = NewWorld(), alone = NewWorld();
  for (const std::vector<NextRows>& step : RowSteps()) {
    StepLogits wanted;
    for (const NextRows& next : step) {
      for (int64_t i = 0; i < next.count; ++i) {
        StepLogits logits = alone->StepRows({{next.sequence}});
        if (next.wanted.empty() || next.wanted[i]) wanted.push_back(std::move(logits.front()));
      }
    }
    const StepLogits got = together->StepRows(step);
    if (bitwise) {
      ASSERT_EQ(got, wanted);
    } else {
      ExpectClose(got, wanted);
    }
  }
  together->LeaveAll();
  EXPECT_EQ(on_host_ > 0, of.host_pieces > 0);
  EXPECT_EQ(recomputed_ > 0, of.l > 0 || of.kv_from > 0);
  EXPECT_EQ(resident_ > 0, of.resident_blocks > 0);
  alone->LeaveAll();
  if (!bitwise) return;
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    for (int64_t layer = 0; layer < loaded_.model->config().layers; ++layer) {
      EXPECT_EQ(together->Stored(i, layer), alone->Stored(i, layer)) << "KV " << i << ", layer " << layer;
      EXPECT_EQ(together->Stored(i, layer, true), alone->Stored(i, layer, true)) << "X " << i << ", layer " << layer;
    }
  }
}

constexpr KvQuant kBits8{.bits = 8, .group = 32}, kBits4{.bits = 4, .group = 32};

INSTANTIATE_TEST_SUITE_P(
    Kvpr, KvprRowsTest,
    ::testing::Values(RowsCase{.name = "Streamed"}, RowsCase{.name = "Recomputed", .l = 192},
                      RowsCase{.name = "RecomputedUpToWithinATile", .heads = kGqa, .l = 200},
                      RowsCase{.name = "Resident", .heads = kGqa, .resident_blocks = 12},
                      RowsCase{.name = "HostLane", .heads = kGqa, .resident_blocks = 8, .host_pieces = 1},
                      RowsCase{.name = "AllLanes", .l = 128, .resident_blocks = 8, .host_pieces = 1},
                      RowsCase{.name = "Bits8", .l = 64, .quant = kBits8, .resident_blocks = 8},
                      RowsCase{.name = "Bits4", .quant = kBits4, .resident_blocks = 12},
                      RowsCase{.name = "XInsteadOfKv", .kv_from = 192},
                      RowsCase{.name = "Windows", .heads = {"Phi3", SyntheticFamily::kPhi3, 6, 200}, .l = 128},
                      RowsCase{.name = "Opt", .heads = kOpt, .l = 64, .resident_blocks = 8}),
    [](const auto& info) { return std::string(info.param.name); });

// What is resident begins at a block, and the window at a piece, which is longer here: a step whose rows lie on both
// sides of where the next window would begin has none, nor a host lane.
TEST(KvprRows, LongSequencesKeepTheirBitsWhereTheirWindowMovesOn) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  if (TestDeviceIsSlow()) GTEST_SKIP() << "long sequences take long here";
  SyntheticModel model = SmallModel(2);
  model.context_length = 20'000;
  const LoadedModel loaded = LoadForTest(WriteSynthetic(model, "kvpr_rows_long"), DType::kF32, 2);
  std::vector<LaneCuts> cuts;
  const auto run = [&](const std::vector<int64_t>& counts) {
    KvprWorld world(loaded, {16'888}, 20);
    auto split = std::make_unique<GivenSplit>([](size_t, const LaneShape&) { return 0; },
                                              [](size_t, const LaneShape&) { return 1; });
    split->recompute_s = 1;
    KvprOptions options = WindowsOf(loaded, 8, 2);
    options.device_bytes += WindowsOf(loaded, 8, 0).device_bytes;
    options.chunk_tokens = 512;
    options.host = &world.host();
    cuts.clear();
    options.on_step = [&](const KvprStep& step) { cuts.push_back(step.plan.cuts[0]); };
    world.UseKvpr(std::move(split), options);
    StepLogits all;
    for (const int64_t count : counts) {
      for (std::vector<float>& logits : world.StepRows({{0, count}})) all.push_back(std::move(logits));
    }
    world.LeaveAll();
    return all;
  };
  const StepLogits alone = run(std::vector<int64_t>(14, 1)), together = run({1, 1, 1, 8, 1, 1, 1});
  if (FormOfTestDevice() == TestDeviceForm::kCpu) {
    EXPECT_EQ(together, alone);
  } else {
    ExpectClose(together,
                alone);  // the host, which has less of the step with eight rows, computes otherwise than a GPU
  }
  ASSERT_GE(cuts.size(), 4u);
  EXPECT_LT(cuts[2].streamed_end, cuts[2].host_end) << "the host has some of what is before the window";
  EXPECT_EQ(cuts[3].host_end, 16'899) << "positions 16,891 to 16,898: no window begins before them";
}

TEST(KvprRows, MoreRowsThanTheLoopWasMadeForAreRefused) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  const LoadedModel loaded = LoadHeads(kMha);
  KvprWorld world(loaded, {300}, 8);
  KvprOptions options;
  options.max_rows = 2;
  world.UseKvpr(SplitAt(0), options);
  std::vector<DecodeRow> rows(3);
  const absl::Status status = world.loop().Step(rows).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("3 rows"));
}

}  // namespace
}  // namespace runahead
