// Steps with several rows of a sequence, against steps with one: logits and what is kept, to the bit.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_family.h"
#include "tests/testing/test_device.h"
#include "tests/worker/decode/rows_world.h"
#include "worker/decode/decode_loop.h"

namespace runahead {
namespace {

std::unique_ptr<StepLoop> MakeDecodeLoop(const LoadedModel& loaded, const KvStore& store, Stream& stream) {
  return std::make_unique<DecodeLoop>(*loaded.model, *loaded.device, store, stream);
}

// The steps as they are, and row by row, each alone.
void ExpectSameAsRowByRow(const LoadedModel& loaded, const std::vector<int64_t>& prompts, int64_t rows,
                          const std::vector<std::vector<NextRows>>& steps) {
  RowsWorld together(loaded, prompts, rows, &MakeDecodeLoop), alone(loaded, prompts, rows, &MakeDecodeLoop);
  for (const std::vector<NextRows>& step : steps) {
    SCOPED_TRACE(::testing::Message() << "step " << &step - steps.data());
    std::vector<std::vector<float>> wanted;
    for (const NextRows& next : step) {
      for (int64_t i = 0; i < next.count; ++i) {
        const auto logits = alone.Step({{next.sequence}});
        if (next.wanted.empty() || next.wanted[i]) wanted.push_back(logits.front());
      }
    }
    const auto got = together.Step(step);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], wanted[i]) << "logits " << i;
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (int64_t layer = 0; layer < loaded.model->config().layers; ++layer) {
      ASSERT_EQ(together.Stored(i, layer), alone.Stored(i, layer)) << "sequence " << i << ", layer " << layer;
    }
  }
}

// Ragged: over borders of pieces, beside single rows, and with logits of all rows, of some, and of none.
const std::vector<int64_t> kPrompts = {1, 5, 250, 300, 700};
const std::vector<std::vector<NextRows>> kSteps = {
    {{0, 16}, {1, 1}, {2, 16}, {3, 2}, {4, 5}},
    {{1, 3, {false, false, true}}, {2, 1}, {4, 16, std::vector<bool>(16, false)}},
    {{0, 4, {true, false, true, true}}, {3, 1, {false}}, {2, 2}},
    {{3, 5, std::vector<bool>(5, false)}, {1, 2, {false, false}}},
    {{4, 1}, {3, 1}, {2, 1}, {1, 1}, {0, 1}},
};
constexpr int64_t kRows = 24;

class DecodeRowsOfFamily : public ::testing::TestWithParam<SyntheticFamily> {};

TEST_P(DecodeRowsOfFamily, SeveralRowsOfASequenceGiveWhatOneAStepGives) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  SyntheticModel model = SmallModelOf(GetParam(), 37);
  if (model.family == SyntheticFamily::kOpt) model.context_length = 1'000;
  ExpectSameAsRowByRow(LoadForTest(WriteSynthetic(model, "decode_rows"), DType::kF32, 2), kPrompts, kRows, kSteps);
}

INSTANTIATE_TEST_SUITE_P(DecodeRows, DecodeRowsOfFamily, ::testing::ValuesIn(kSyntheticFamilies),
                         [](const auto& info) { return std::string(ArchitectureOf(info.param)); });

class DecodeRowsOfDType : public ::testing::TestWithParam<DType> {};

// 16,384 and 32,768 are where pieces become longer.
TEST_P(DecodeRowsOfDType, AlsoWhereTheRowsOfASequenceAreCutIntoOtherPieces) {
  RUNAHEAD_NEED_TEST_DEVICE(GetParam());
  SyntheticModel model = SmallModel(2);
  model.context_length = 40'000;
  const LoadedModel loaded = LoadForTest(WriteSynthetic(model, "decode_rows_long"), GetParam(), 2);
  ExpectSameAsRowByRow(loaded, kPrompts, kRows, kSteps);
  if (TestDeviceIsSlow()) return;
  ExpectSameAsRowByRow(loaded, {16'380, 32'760, 40, 16'384}, kRows,
                       {{{0, 16}, {1, 16}, {2, 3}, {3, 1}}, {{1, 1}, {3, 4, {false, true, false, true}}}});
}

INSTANTIATE_TEST_SUITE_P(DecodeRows, DecodeRowsOfDType, ::testing::ValuesIn(TestDeviceDTypes()),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(DecodeRows, ThatDoNotStandTogetherOrHaveAGapAreRefused) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  const LoadedModel loaded = LoadForTest(WriteSynthetic(SmallModel(2), "decode_rows_refused"), DType::kF32, 2);
  RowsWorld world(loaded, {5, 9}, kRows, &MakeDecodeLoop);
  const absl::StatusOr<Tensor> apart = world.Try({{0, 1}, {1, 1}, {0, 1}});
  EXPECT_EQ(apart.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(apart.status().message()), ::testing::HasSubstr("stand together"));
  const absl::StatusOr<Tensor> gap = world.Try({{1, 1}, {0, 2}, {0, 1}});
  EXPECT_EQ(gap.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(gap.status().message()), ::testing::HasSubstr("position 5"));
}

}  // namespace
}  // namespace runahead
