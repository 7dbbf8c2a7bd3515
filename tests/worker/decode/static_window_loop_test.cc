// Static windows against plain decode over the same KV, to the bit.
#include "worker/decode/static_window_loop.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/device_tensor.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_device.h"
#include "tests/testing/windowed_model.h"
#include "tests/testing/wrapping_device.h"
#include "worker/decode/decode_loop.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

using StepLogits = std::vector<std::vector<float>>;

// Counts bytes that are copied within a buffer, as windows are, and allows buffers of so many.
class CopyCounter final : public WrappingDevice {
 public:
  using WrappingDevice::WrappingDevice;
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    if (from.buffer == to.buffer) moved += static_cast<int64_t>(from.size);
    return WrappingDevice::Copy(stream, from, to);
  }
  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes, MemoryKind kind) override {
    if (bytes > most_bytes) return absl::ResourceExhaustedError("the device is full");
    return WrappingDevice::Allocate(bytes, kind);
  }
  int64_t moved = 0;
  size_t most_bytes = std::numeric_limits<size_t>::max();
};

// Sequences with made-up KV, the same in every world of the same prompts, and a loop that decodes them.
class WindowWorld {
 public:
  WindowWorld(const LoadedModel& loaded, std::shared_ptr<const Model> model, std::vector<int64_t> prompts,
              int64_t steps)
      : device_(loaded.device), model_(std::move(model)), memory_(loaded.device), prompts_(std::move(prompts)) {
    int64_t blocks = 0;
    for (const int64_t prompt : prompts_) blocks += KvBlocksFor(prompt + steps);
    store_ = *KvStore::Create({.layers = model_->config().layers,
                               .row_bytes = model_->kv_row_bytes(),
                               .capacity_tokens = blocks * kKvBlockTokens},
                              *loaded.device, RealClock());
    for (const int64_t prompt : prompts_) Fill(prompt, steps);
  }
  WindowWorld(const LoadedModel& loaded, std::vector<int64_t> prompts, int64_t steps)
      : WindowWorld(loaded, loaded.model, std::move(prompts), steps) {}

  void UseDecodeLoop() { loop_ = std::make_unique<DecodeLoop>(*model_, device_, *store_, memory_.stream()); }
  StaticWindowLoop& UseWindows(int64_t context, int64_t reserve = 0, int64_t max_rows = 0) {
    const int64_t rows = max_rows > 0 ? max_rows : static_cast<int64_t>(prompts_.size());
    auto loop = TryWindows({*MakeStaticWindowSize(context, reserve), rows});
    RUNAHEAD_CHECK(loop.ok());
    StaticWindowLoop& made = **loop;
    loop_ = *std::move(loop);
    return made;
  }

  absl::StatusOr<std::unique_ptr<StaticWindowLoop>> TryWindows(const StaticWindowOptions& options) {
    return StaticWindowLoop::Create(*model_, device_, *store_, memory_.stream(), options);
  }

  // One step of the sequences that `picked` names, from their positions on. An error leaves these as they are.
  absl::StatusOr<StepLogits> Try(const std::vector<size_t>& picked) {
    std::vector<DecodeRow> rows;
    for (const size_t i : picked) {
      const int64_t position = positions_[i];
      rows.push_back({sequences_[i].get(), static_cast<int32_t>((7 * prompts_[i] + 31 * position) % 320), position});
    }
    const auto logits = loop_->Step(rows);
    memory_.Finish();
    if (!logits.ok()) return logits.status();
    StepLogits values;
    for (int64_t row = 0; row < logits->rows; ++row) values.push_back(memory_.Read(logits->Rows(row, 1)));
    return values;
  }
  StepLogits Step(const std::vector<size_t>& picked) {
    const absl::StatusOr<StepLogits> logits = Try(picked);
    EXPECT_TRUE(logits.ok()) << logits.status();
    for (const size_t i : picked) ++positions_[i];
    return logits.value_or(StepLogits());
  }
  StepLogits Step() {
    std::vector<size_t> all(prompts_.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = i;
    return Step(all);
  }
  void Leave(size_t i) { loop_->Leave(*sequences_[i]); }

  // NaN in all of a sequence's rows of the store.
  void Poison(size_t i) {
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
      for (const KvSpan& span : store_->arena().Spans(sequences_[i]->blocks(), layer, 0, prompts_[i])) {
        std::memset(span.rows.data(), 0xff, span.rows.size);
      }
    }
  }

  CopyCounter& device() { return device_; }
  int64_t& position(size_t i) { return positions_[i]; }

 private:
  void Fill(int64_t prompt, int64_t steps) {
    const LeaseId lease = *store_->Reserve(prompt, prompt + steps);
    std::mt19937 random(static_cast<uint32_t>(prompt));
    std::normal_distribution<float> normal;
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
      auto write = store_->BeginWrite(lease, layer, 0, prompt);
      RUNAHEAD_CHECK(write.ok() && write->ready().Wait().ok());
      for (const BufferRef& to : write->destination()) {
        for (size_t at = 0; at < to.size; at += sizeof(float)) {
          const float value = normal(random);
          std::memcpy(to.data() + at, &value, sizeof(value));
        }
      }
      RUNAHEAD_CHECK(write->Commit().Wait().ok());
    }
    sequences_.push_back(std::make_unique<KvStore::Sequence>(*store_->Open(lease)));
    positions_.push_back(prompt);
  }

  CopyCounter device_;
  const std::shared_ptr<const Model> model_;
  DeviceMemory memory_;
  const std::vector<int64_t> prompts_;
  std::unique_ptr<KvStore> store_;
  std::vector<std::unique_ptr<KvStore::Sequence>> sequences_;  // end before the store does
  std::vector<int64_t> positions_;
  std::unique_ptr<StepLoop> loop_;
};

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
