// Static windows in codes of 8 bits, against plain decode over KV that the test has rounded to the same codes, to the
// bit.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_device.h"
#include "tests/testing/windowed_model.h"
#include "tests/worker/decode/window_world.h"
#include "worker/decode/static_window_loop.h"
#include "worker/kv/static_quantisation.h"

namespace runahead {
namespace {

using testing::StepLogits;
using testing::WindowWorld;

StaticWindowOptions InCodes(int64_t context, int64_t reserve = 0) {
  return {.size = *MakeStaticWindowSize(context, reserve), .in_codes = true};
}

// Plain decode of one sequence of a world whose rows in the store are what their codes say: those of the prompt from
// the beginning on, and a step's new row from before its attention on.
class RoundedDecode {
 public:
  RoundedDecode(WindowWorld& world, size_t sequence, int64_t prompt) : world_(world), sequence_(sequence) {
    const int64_t layers = world.model().config().layers;
    dtype_ = world.model().kv_dtype();
    half_ = world.model().kv_row_bytes() / static_cast<int64_t>(DTypeSize(dtype_)) / 2;
    for (int64_t layer = 0; layer < layers; ++layer) {
      std::vector<float> halves[2];
      for (int64_t at = 0; at < prompt; ++at) {
        for (int half = 0; half < 2; ++half) {
          const std::vector<float> values = Read(layer, at, half);
          halves[half].insert(halves[half].end(), values.begin(), values.end());
        }
      }
      by_.push_back({*FitTensor(halves[0]), *FitTensor(halves[1])});
      for (int64_t at = 0; at < prompt; ++at) Round(layer, at);
    }
    world.UseDecodeLoop();
  }

  std::vector<float> Step() {
    int64_t layer = 0;
    const int64_t position = world_.position(sequence_);
    world_.device().before_attention = [&](Stream& stream) {
      world_.device().Call(stream, [this, position, layer] { saturated_ += Round(layer, position); });
      ++layer;
    };
    std::vector<float> logits = world_.Step({sequence_}).front();
    world_.device().before_attention = nullptr;
    EXPECT_EQ(layer, world_.model().config().layers);
    return logits;
  }

  int64_t saturated() const { return saturated_; }

 private:
  std::byte* Half(int64_t layer, int64_t position, int half) const {
    return world_.RowOf(sequence_, layer, position) + half * half_ * static_cast<int64_t>(DTypeSize(dtype_));
  }
  std::vector<float> Read(int64_t layer, int64_t position, int half) const {
    std::vector<float> values;
    const std::byte* at = Half(layer, position, half);
    for (int64_t i = 0; i < half_; ++i) values.push_back(WindowWorld::Read(dtype_, at + i * DTypeSize(dtype_)));
    return values;
  }
  int64_t Round(int64_t layer, int64_t position) {
    int64_t saturated = 0;
    for (int half = 0; half < 2; ++half) {
      std::vector<float> values = Read(layer, position, half);
      std::vector<uint8_t> codes(values.size());
      saturated += QuantiseTensor(by_[layer][half], values, absl::MakeSpan(codes));
      DequantiseTensor(by_[layer][half], codes, absl::MakeSpan(values));
      std::byte* at = Half(layer, position, half);
      for (int64_t i = 0; i < half_; ++i) WriteValue(values[i], dtype_, at + i * DTypeSize(dtype_));
    }
    return saturated;
  }

  WindowWorld& world_;
  const size_t sequence_;
  DType dtype_;
  int64_t half_ = 0;  // values of K, or of V, of a row
  std::vector<std::vector<TensorQuantisation>> by_;
  int64_t saturated_ = 0;
};

class CodedWindowRowsTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    RUNAHEAD_NEED_TEST_DEVICE(GetParam());
    loaded_ = LoadForTest(WriteSynthetic(SmallModel(2), "coded_window"), GetParam(), 2);
  }
  std::shared_ptr<const Model> Windowed(int64_t window) const {
    return std::make_shared<WindowedModel>(loaded_.model, window);
  }
  LoadedModel loaded_;
};

TEST_P(CodedWindowRowsTest, EveryRowIsReadAsItsCodesSay) {
  const std::vector<int64_t> prompts = {2, 5, 40, 300};
  constexpr int64_t kSteps = 6;
  WindowWorld plain(loaded_, prompts, kSteps), windows(loaded_, prompts, kSteps);
  int64_t saturated = 0, expected = 0;
  StaticWindowOptions options = InCodes(prompts.back() + kSteps);
  options.on_saturated = [&saturated](int64_t values) { saturated += values; };
  windows.UseWindows(options);
  std::vector<StepLogits> steps;
  for (int64_t step = 0; step < kSteps; ++step) steps.push_back(windows.Step());
  for (size_t i = 0; i < prompts.size(); ++i) {
    RoundedDecode rounded(plain, i, prompts[i]);
    for (int64_t step = 0; step < kSteps; ++step) EXPECT_EQ(steps[step][i], rounded.Step()) << i << ", " << step;
    expected += rounded.saturated();
  }
  EXPECT_GT(expected, 0);  // of two rows the range is small
  EXPECT_EQ(saturated, expected);
}

TEST_P(CodedWindowRowsTest, CopiesOfTheWindowChangeNoRow) {
  constexpr int64_t kContext = 8, kSteps = 40;
  const std::vector<int64_t> prompts = {1, 3, 7, 30};
  WindowWorld seldom(loaded_, Windowed(kContext), prompts, kSteps), often(loaded_, Windowed(kContext), prompts, kSteps);
  seldom.UseWindows(InCodes(kContext, 2 * (kContext - 1)));
  often.UseWindows(InCodes(kContext, kContext));
  for (int64_t step = 0; step < kSteps; ++step) ASSERT_EQ(seldom.Step(), often.Step()) << step;
  EXPECT_GT(often.device().moved, 3 * seldom.device().moved);
  EXPECT_GT(seldom.device().moved, 0);
}

TEST_P(CodedWindowRowsTest, GivesTheSameInAnyCompanyAndWhenAStepIsTriedAgain) {
  const std::vector<int64_t> prompts = {3, 20, 9};
  constexpr int64_t kContext = 12, kSteps = 14;
  WindowWorld together(loaded_, Windowed(kContext), prompts, kSteps),
      apart(loaded_, Windowed(kContext), prompts, kSteps);
  together.UseWindows(InCodes(kContext, kContext + 2));
  apart.UseWindows(InCodes(kContext, kContext + 2));
  for (int64_t step = 0; step < kSteps; ++step) {
    SCOPED_TRACE(step);
    const StepLogits all = together.Step();
    for (const size_t i : {2, 0, 1}) {
      EXPECT_EQ(apart.Try({i})->front(), all[i]);
      EXPECT_EQ(apart.Step({i}).front(), all[i]);
    }
  }
}

TEST_P(CodedWindowRowsTest, AWindowOfAnotherLeavesNothing) {
  WindowWorld alone(loaded_, {20, 9}, 3), after(loaded_, {20, 9}, 3);
  alone.UseWindows({.size = *MakeStaticWindowSize(32), .max_rows = 1, .in_codes = true});
  after.UseWindows({.size = *MakeStaticWindowSize(32), .max_rows = 1, .in_codes = true});
  for (int step = 0; step < 3; ++step) after.Step({0});
  after.Leave(0);
  for (int step = 0; step < 3; ++step) EXPECT_EQ(after.Step({1}), alone.Step({1})) << step;
}

TEST_P(CodedWindowRowsTest, APromptWithoutARangeIsRefusedAndTheOthersGoOn) {
  WindowWorld windows(loaded_, {5, 4}, 6);
  windows.UseWindows({.size = *MakeStaticWindowSize(16), .max_rows = 1, .in_codes = true});
  WriteValue(std::numeric_limits<float>::quiet_NaN(), loaded_.model->kv_dtype(), windows.RowOf(0, 1, 2));
  EXPECT_EQ(windows.Try({0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(windows.Try({1}).ok());
}

TEST_P(CodedWindowRowsTest, TakesAByteAValueAndOneLayerAsItIsComputed) {
  WindowWorld windows(loaded_, {5}, 1);
  const ModelConfig& config = loaded_.model->config();
  const StaticWindowSize size = *MakeStaticWindowSize(100, 150);
  const int64_t codes = 3 * StaticWindowBytes(size, config.layers, config.kv_heads, config.head_dim, 8);
  EXPECT_EQ(windows.UseWindows({.size = size, .max_rows = 3, .in_codes = true}).bytes(),
            codes + 3 * 100 * loaded_.model->kv_row_bytes());
}

INSTANTIATE_TEST_SUITE_P(DTypes, CodedWindowRowsTest, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace runahead
