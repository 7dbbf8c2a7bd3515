// Sequences with made-up KV, the same in every world of the same prompts, and a loop that decodes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/device_tensor.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/wrapping_device.h"
#include "tests/worker/decode/made_up_kv.h"
#include "worker/decode/decode_loop.h"
#include "worker/decode/static_window_loop.h"

namespace runahead::testing {

using StepLogits = std::vector<std::vector<float>>;

// Counts bytes that are copied within a buffer, as windows are, and allows buffers of so many.
class WatchedDevice final : public WrappingDevice {
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
  absl::Status AttendPieces(Stream& stream, const ConstTensor& q, const AttentionShape& shape, const KvTable& table,
                            const ConstBufferRef& layer, const MutTensor& partials) override {
    if (before_attention) before_attention(stream);
    return WrappingDevice::AttendPieces(stream, q, shape, table, layer, partials);
  }
  int64_t moved = 0;
  std::function<void(Stream&)> before_attention;  // of every layer
  size_t most_bytes = std::numeric_limits<size_t>::max();
};

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
    return UseWindows(StaticWindowOptions{*MakeStaticWindowSize(context, reserve), max_rows});
  }
  // `max_rows` 0: as many as there are sequences.
  StaticWindowLoop& UseWindows(StaticWindowOptions options) {
    if (options.max_rows == 0) options.max_rows = static_cast<int64_t>(prompts_.size());
    auto loop = TryWindows(options);
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

  // A row of a sequence in the store.
  std::byte* RowOf(size_t i, int64_t layer, int64_t position) const {
    return store_->arena().Spans(sequences_[i]->blocks(), layer, position, position + 1).front().rows.data();
  }

  const Model& model() const { return *model_; }
  WatchedDevice& device() { return device_; }
  int64_t& position(size_t i) { return positions_[i]; }

  static float Read(DType dtype, const std::byte* from) {
    float value;
    uint16_t half;
    std::memcpy(&half, from, sizeof(half));
    if (dtype != DType::kF32) return dtype == DType::kBF16 ? ToFloat(BFloat16{half}) : ToFloat(Float16{half});
    std::memcpy(&value, from, sizeof(value));
    return value;
  }

 private:
  void Fill(int64_t prompt, int64_t steps) {
    const LeaseId lease = *store_->Reserve({.prompt_tokens = prompt, .total_tokens = prompt + steps});
    FillPrompt(*store_, lease, prompt, model_->kv_dtype());
    sequences_.push_back(std::make_unique<KvStore::Sequence>(*store_->Open(lease)));
    positions_.push_back(prompt);
  }

  WatchedDevice device_;
  const std::shared_ptr<const Model> model_;
  DeviceMemory memory_;
  const std::vector<int64_t> prompts_;
  std::unique_ptr<KvStore> store_;
  std::vector<std::unique_ptr<KvStore::Sequence>> sequences_;  // end before the store does
  std::vector<int64_t> positions_;
  std::unique_ptr<StepLoop> loop_;
};

}  // namespace runahead::testing
