// Static windows against plain decode over the same KV, to the bit.
#include "worker/decode/static_window_loop.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_device.h"
#include "tests/testing/windowed_model.h"
#include "tests/worker/decode/rows_world.h"
#include "tests/worker/decode/window_world.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using testing::StepLogits;
using testing::WindowWorld;

class StaticWindowLoopTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
    loaded_ = LoadForTest(WriteSynthetic(SmallModel(2), "static_window"), DType::kF32, 2);
  }
  std::shared_ptr<const Model> Windowed(int64_t window) const {
    return std::make_shared<WindowedModel>(loaded_.model, window);
  }
  LoadedModel loaded_;
};

TEST_F(StaticWindowLoopTest, WithinTheContextItGivesBitwiseWhatPlainDecodeGives) {
  const std::vector<int64_t> prompts =
      TestDeviceIsSlow() ? std::vector<int64_t>{1, 300} : std::vector<int64_t>{1, 5, 255, 256, 300, 700};
  constexpr int64_t kSteps = 4;
  const int64_t context = prompts.back() + kSteps, past = context - 1;
  for (const int64_t reserve : {2 * past, past + past / 2, past + 3}) {
    SCOPED_TRACE(reserve);
    WindowWorld plain(loaded_, prompts, kSteps), windows(loaded_, prompts, kSteps);
    plain.UseDecodeLoop();
    windows.UseWindows(context, reserve);
    for (int64_t step = 0; step < kSteps; ++step) {
      SCOPED_TRACE(step);
      EXPECT_EQ(windows.Step(), plain.Step());
    }
  }
}

struct WindowCase {
  int64_t context, reserve, window;
};

// Against plain decode, which has the KV of all positions and hides what the model's window does.
TEST_F(StaticWindowLoopTest, BeyondTheContextItGivesBitwiseWhatPlainDecodeOfAWindowModelGives) {
  const std::vector<int64_t> prompts = {1, 3, 7, 8, 30};
  std::vector<WindowCase> cases = {{8, 14, 8}, {8, 10, 8}, {8, 8, 5}, {17, 32, 17}, {17, 24, 9}, {5, 8, 1}};
  if (TestDeviceIsSlow()) cases = {{5, 6, 5}};
  for (const auto& [context, reserve, window] : cases) {
    SCOPED_TRACE(::testing::Message() << "S " << context << ", " << reserve << " rows, window " << window);
    const int64_t between = reserve - (context - 1), steps = std::max(3 * between, context) + 2;
    WindowWorld plain(loaded_, Windowed(window), prompts, steps), windows(loaded_, Windowed(window), prompts, steps);
    plain.UseDecodeLoop();
    windows.UseWindows(context, reserve);
    for (int64_t step = 0; step < steps; ++step) {
      SCOPED_TRACE(step);
      ASSERT_EQ(windows.Step(), plain.Step());
    }
    // Three copies at least, which the longest sequence makes of whole windows.
    const int64_t window_bytes = (context - 1) * loaded_.model->kv_row_bytes() * loaded_.model->config().layers;
    EXPECT_GE(windows.device().moved, 3 * window_bytes);
  }
}

// The window begins behind the first piece of 256 positions, which nobody sees any more.
TEST_F(StaticWindowLoopTest, WholePiecesMayHaveLeftTheWindow) {
  constexpr int64_t kSteps = 5;
  const std::vector<int64_t> prompts = {900, 300, 299, 20};
  WindowWorld plain(loaded_, Windowed(300), prompts, kSteps), windows(loaded_, Windowed(300), prompts, kSteps);
  plain.UseDecodeLoop();
  windows.UseWindows(300, 302);
  for (int64_t step = 0; step < kSteps; ++step) {
    SCOPED_TRACE(step);
    ASSERT_EQ(windows.Step(), plain.Step());
  }
}

TEST_F(StaticWindowLoopTest, OneCopyOfTheWindowComesInAsManyTokens) {
  constexpr int64_t kContext = 6, kPast = kContext - 1;
  WindowWorld windows(loaded_, Windowed(kContext), {40}, 4 * kPast + 1);
  windows.UseWindows(kContext);
  const int64_t window_bytes = kPast * loaded_.model->kv_row_bytes() * loaded_.model->config().layers;
  for (int64_t step = 0; step <= 4 * kPast; ++step) {
    windows.Step();
    EXPECT_EQ(windows.device().moved, (step / kPast) * window_bytes) << step;
  }
}

TEST_F(StaticWindowLoopTest, SeveralRowsOfASequenceAreRefusedByName) {
  RowsWorld world(loaded_, {9, 4}, 4, [](const LoadedModel& of, const KvStore& store, Stream& stream) {
    return *StaticWindowLoop::Create(*of.model, *of.device, store, stream,
                                     {.size = *MakeStaticWindowSize(20, 0), .max_rows = 2});
  });
  const absl::Status status = world.Try({{0, 1}, {1, 2}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("static_window"));
  EXPECT_EQ(world.Step({{0, 1}, {1, 1, {false}}}).size(), 1u) << "the sequences go on";
}

TEST_F(StaticWindowLoopTest, GivesTheSameInAnyCompanyAndWhenAStepIsTriedAgain) {
  const std::vector<int64_t> prompts = {3, 20, 9};
  constexpr int64_t kContext = 12, kSteps = 14;
  WindowWorld together(loaded_, Windowed(kContext), prompts, kSteps),
      apart(loaded_, Windowed(kContext), prompts, kSteps);
  together.UseWindows(kContext, kContext + 2);
  apart.UseWindows(kContext, kContext + 2);
  for (int64_t step = 0; step < kSteps; ++step) {
    SCOPED_TRACE(step);
    const StepLogits all = together.Step();
    for (const size_t i : {2, 0, 1}) {
      EXPECT_EQ(apart.Try({i})->front(), all[i]);
      EXPECT_EQ(apart.Step({i}).front(), all[i]);
    }
  }
}

TEST_F(StaticWindowLoopTest, TheStoreIsReadOnceAndAWindowOfAnotherLeavesNothing) {
  WindowWorld plain(loaded_, {20, 9}, 3), windows(loaded_, {20, 9}, 3);
  plain.UseDecodeLoop();
  windows.UseWindows(32, 0, /*max_rows=*/1);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(windows.Step({0}), plain.Step({0}));
    windows.Poison(0);
  }
  // Then a window full of NaN, which the next sequence gets with its slot.
  windows.Leave(0);
  windows.position(0) = 20;
  EXPECT_TRUE(std::isnan(windows.Step({0}).front().front()));
  windows.Leave(0);
  for (int step = 0; step < 3; ++step) EXPECT_EQ(windows.Step({1}), plain.Step({1}));
}

TEST_F(StaticWindowLoopTest, RefusesWhatItHasNoWindowFor) {
  WindowWorld windows(loaded_, {5, 4}, 6);
  windows.UseWindows(8, 0, /*max_rows=*/1);
  windows.Step({0});
  EXPECT_EQ(windows.Try({1}).status().code(), absl::StatusCode::kResourceExhausted);
  windows.position(0) += 1;
  EXPECT_EQ(windows.Try({0}).status().code(), absl::StatusCode::kFailedPrecondition);
  windows.position(0) = 8;
  EXPECT_EQ(windows.Try({0}).status().code(), absl::StatusCode::kOutOfRange);
  windows.position(0) = 6;
  EXPECT_TRUE(windows.Try({0}).ok());
  windows.Leave(0);
  windows.Leave(0);
  EXPECT_TRUE(windows.Try({1}).ok());
}

TEST_F(StaticWindowLoopTest, SaysHowManyTokensItTakes) {
  WindowWorld full(loaded_, {5}, 1);
  const StaticWindowLoop& loop = full.UseWindows(8);
  EXPECT_TRUE(loop.CheckTokens(8).ok());
  const absl::Status longer = loop.CheckTokens(9);
  EXPECT_EQ(longer.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(longer.message(), HasSubstr("static_window of at least 9"));
  WindowWorld windowed(loaded_, Windowed(8), {5}, 1), wider(loaded_, Windowed(9), {5}, 1);
  EXPECT_TRUE(windowed.UseWindows(8).CheckTokens(1000).ok());
  EXPECT_FALSE(wider.UseWindows(8).CheckTokens(9).ok());
  const auto mixed = std::make_shared<WindowedModel>(loaded_.model, 8, /*last_layer_window=*/0);
  WindowWorld some(loaded_, mixed, {5}, 1);
  EXPECT_FALSE(some.UseWindows(8).CheckTokens(9).ok());
}

TEST_F(StaticWindowLoopTest, TakesTheBytesOfItsSizeAndNamesThemWhereTheyAreNotThere) {
  WindowWorld windows(loaded_, {5}, 1);
  const ModelConfig& config = loaded_.model->config();
  const StaticWindowSize size = *MakeStaticWindowSize(100, 150);
  const int64_t bytes = 3 * StaticWindowBytes(size, config.layers, config.kv_heads, config.head_dim, 32);
  windows.device().most_bytes = static_cast<size_t>(bytes);
  EXPECT_EQ(windows.UseWindows(100, 150, 3).bytes(), bytes);
  --windows.device().most_bytes;
  const absl::Status full = windows.TryWindows({size, 3}).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr(absl::StrCat(bytes, " bytes")));
  EXPECT_EQ(windows.TryWindows({size, 0}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace runahead
