// Stores in host memory with made-up X, and the KV that comes from it, of several sequences; and loops that decode them
// on given tokens.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/device_tensor.h"
#include "tests/testing/model_fixture.h"
#include "tests/worker/decode/rows_world.h"
#include "worker/decode/decode_loop.h"
#include "worker/decode/kvpr/kvpr_loop.h"
#include "worker/model/x_form.h"

namespace runahead {

// Logits of a step, a row each.
using StepLogits = std::vector<std::vector<float>>;

// The split of each step from a function; the measurements it was told.
class GivenSplit final : public SplitSource {
 public:
  // l, or pieces of the host lane; cut to what is possible.
  using Cut = std::function<int64_t(size_t sequence, const LaneShape& shape)>;
  explicit GivenSplit(
      Cut cut, Cut host_pieces = [](size_t, const LaneShape&) { return 0; })
      : cut_(std::move(cut)), host_pieces_(std::move(host_pieces)) {}
  absl::StatusOr<LanePlan> Plan(absl::Span<const LaneShape> shapes) override {
    LanePlan plan;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const LaneShape& shape = shapes[i];
      const int64_t window = shape.WindowBegin(), piece = shape.piece_tokens;
      const bool on_host = shape.may_attend_on_host && window < shape.length;
      const int64_t most = on_host ? (window - RoundUpTo(piece, shape.l_min)) / piece : 0;
      const int64_t end = window - piece * std::clamp<int64_t>(host_pieces_(i, shape), 0, std::max<int64_t>(most, 0));
      const int64_t l = std::max(shape.l_min, cut_(i, shape));
      plan.cuts.push_back({std::min({l, shape.x_stored, end}), end, window});
    }
    plan.rows = RowsOfCuts(shapes, plan.cuts, kSplitTile);
    return plan;
  }
  void Observe(const LanePlan& plan, const LaneMeasurement& measured) override {
    observed_rows.push_back(plan.rows);
    observed.push_back(measured);
  }
  void Restart(const LaneCosts&) override {}
  LaneCosts costs() const override {
    LaneCosts costs;
    costs.link_bytes_per_s = 1e9;
    costs.kv_bytes = 1000;
    costs.x_bytes = 500;
    costs.recompute_s = recompute_s;
    return costs;
  }
  std::vector<LaneRows> observed_rows;  // of each step that it was told of
  std::vector<LaneMeasurement> observed;
  double recompute_s = 1e-7;  // of the costs: whether tiers of X pay

 private:
  const Cut cut_, host_pieces_;
};

inline std::unique_ptr<GivenSplit> SplitAt(int64_t l) {
  return std::make_unique<GivenSplit>([l](size_t, const LaneShape&) { return l; });
}

// The same contents in every world of the same model and prompts.
class KvprWorld {
 public:
  // `maker`: the same model with resident weights, which makes the contents; null: `loaded` itself. KV of tokens before
  // `kv_from` has not been handed off, nor has what windows hide from decode: these rows are NaN. `kept_x`: the form
  // that X is quantised to on arrival; without it, it is kept as it comes.
  KvprWorld(const LoadedModel& loaded, std::vector<int64_t> prompts, int64_t steps, bool with_x = true,
            std::optional<KvQuant> quant = {}, const LoadedModel* maker = nullptr, int64_t kv_from = 0,
            std::optional<RowForm> kept_x = {})
      : loaded_(loaded),
        maker_(maker == nullptr ? loaded : *maker),
        device_(loaded.device),
        memory_(device_),
        prompts_(std::move(prompts)),
        with_x_(with_x),
        kv_from_(kv_from) {
    int64_t blocks = 0;
    for (const int64_t prompt : prompts_) blocks += KvBlocksFor(prompt + steps);
    const ModelConfig& config = loaded.model->config();
    KvStoreOptions options{
        .layers = config.layers, .row_bytes = loaded.model->kv_row_bytes(), .capacity_tokens = blocks * kKvBlockTokens};
    if (with_x) {
      const RowForm arrives = XFormOf(*loaded.model, *device_);
      options.x_form = kept_x.value_or(arrives);
      if (kept_x.has_value()) options.x_quantisation = XQuantisation{arrives, config.hidden, host_.get()};
      options.x_row_bytes = RowFormBytes(options.x_form, config.hidden);
    }
    options.windows = loaded.model->windows();
    if (quant.has_value()) options.quantisation = KvQuantisation{*quant, loaded.model->kv_dtype(), host_.get()};
    store_ = *KvStore::Create(options, *device_, RealClock());
    for (size_t i = 0; i < prompts_.size(); ++i) Fill(i, steps);
  }

  // Plain decode over the same store.
  void UseDecodeLoop() { loop_ = std::make_unique<DecodeLoop>(*loaded_.model, *device_, *store_, memory_.stream()); }
  KvprLoop& UseKvpr(std::unique_ptr<SplitSource> split, KvprOptions options = {}) {
    if (options.max_rows == 0) options.max_rows = static_cast<int64_t>(prompts_.size());
    auto loop =
        KvprLoop::Create(*loaded_.model, *device_, *store_, memory_.stream(), std::move(split), std::move(options));
    EXPECT_TRUE(loop.ok()) << loop.status();
    RUNAHEAD_CHECK(loop.ok());
    KvprLoop& made = **loop;
    loop_ = *std::move(loop);
    return made;
  }

  SpanRecorder* recorder = nullptr;  // of the first sequence

  // The next step of the sequences that `picked` names, each on a token of its own and of the step.
  StepLogits Step(const std::vector<size_t>& picked) {
    const auto logits = TryStep(picked);
    for (const size_t i : picked) ++sequences_[i]->position;
    return Values(logits);
  }
  // The same, which may fail; then it is still the next step.
  absl::StatusOr<Tensor> TryStep(const std::vector<size_t>& picked) {
    std::vector<DecodeRow> rows;
    for (const size_t i : picked) rows.push_back(NextRow(i, i == 0 ? recorder : nullptr));
    return loop_->Step(rows);
  }
  // A step with any number of rows of a sequence; the logits that are wanted, in the order of the rows.
  StepLogits StepRows(const std::vector<NextRows>& step) {
    std::vector<DecodeRow> rows;
    for (const NextRows& next : step) {
      for (int64_t i = 0; i < next.count; ++i, ++sequences_[next.sequence]->position) {
        rows.push_back(NextRow(next.sequence, nullptr));
        rows.back().wants_logits = next.wanted.empty() || next.wanted[i];
      }
    }
    return Values(loop_->Step(rows));
  }
  // What the store has of a sequence's KV, or X, in a layer, once nothing is on its way.
  std::vector<std::byte> Stored(size_t i, int64_t layer, bool x = false) {
    std::vector<std::byte> bytes;
    const KvArena& arena = x ? *store_->x_arena() : store_->arena();
    for (const KvSpan& span : arena.Spans(sequences_[i]->kv.blocks(), layer, 0, sequences_[i]->position)) {
      bytes.insert(bytes.end(), span.rows.data(), span.rows.data() + span.rows.size);
    }
    return bytes;
  }
  StepLogits Step() {
    std::vector<size_t> all(prompts_.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = i;
    return Step(all);
  }
  // Ends a sequence; its memory is overwritten, as that of another would overwrite it.
  void End(size_t i) {
    loop_->Leave(sequences_[i]->kv);
    const int64_t tokens = static_cast<int64_t>(sequences_[i]->kv.blocks().size()) * kKvBlockTokens;
    Poison(i, 0, tokens);
    if (with_x_) PoisonX(i, 0, tokens);
    sequences_[i].reset();
  }
  void LeaveAll() {
    for (const auto& sequence : sequences_) {
      if (sequence != nullptr) loop_->Leave(sequence->kv);
    }
  }

  // NaN in the host's KV, or X, of positions [begin, end), in all layers.
  void Poison(size_t i, int64_t begin, int64_t end) { PoisonIn(store_->arena(), i, begin, end); }
  void PoisonX(size_t i, int64_t begin, int64_t end) { PoisonIn(*store_->x_arena(), i, begin, end); }

  bool Settle(size_t i) { return loop_->SettleKv(sequences_[i]->kv); }

  Device& device() { return *device_; }
  Device& host() { return *host_; }
  KvStore& store() { return *store_; }
  StepLoop& loop() { return *loop_; }
  int64_t position(size_t i) const { return sequences_[i]->position; }

 private:
  struct Sequence {
    KvStore::Sequence kv;
    int64_t position = 0;
  };

  DecodeRow NextRow(size_t i, SpanRecorder* spans) const {
    const Sequence& sequence = *sequences_[i];
    return {&sequence.kv, static_cast<int32_t>((7 * i + 31 * sequence.position) % 320), sequence.position, spans};
  }
  // Called once a step is done.
  StepLogits Values(const absl::StatusOr<Tensor>& logits) {
    EXPECT_TRUE(logits.ok()) << logits.status();
    RUNAHEAD_CHECK(logits.ok());
    memory_.Finish();
    StepLogits values;
    for (int64_t row = 0; row < logits->rows; ++row) values.push_back(memory_.Read(logits->Rows(row, 1)));
    return values;
  }

  void Fill(size_t i, int64_t steps) {
    const int64_t kv_from = std::min(kv_from_, prompts_[i]);
    const LeaseId lease = *store_->Reserve(
        {.prompt_tokens = prompts_[i], .total_tokens = prompts_[i] + steps, .with_x = with_x_, .kv_from = kv_from});
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
      const auto [kv, x] = KvAndX(i, layer);
      const int64_t hidden = HiddenIn(i, layer), from = std::max(kv_from, hidden);
      if (from < prompts_[i]) Write(lease, layer, kv, SliceKind::kKv, i, from);
      if (with_x_ && hidden < prompts_[i]) Write(lease, layer, x, SliceKind::kX, i, hidden);
    }
    sequences_.push_back(std::make_unique<Sequence>(Sequence{*store_->Open(lease), prompts_[i]}));
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
      PoisonLayer(store_->arena(), i, layer, 0, std::max(kv_from, HiddenIn(i, layer)));
      if (with_x_) PoisonLayer(*store_->x_arena(), i, layer, 0, HiddenIn(i, layer));
    }
  }

  // Positions that no query of decode sees in the layer.
  int64_t HiddenIn(size_t i, int64_t layer) const {
    const int64_t window = loaded_.model->attention(layer).window;
    return window == 0 ? 0 : std::max<int64_t>(0, prompts_[i] + 1 - window);
  }

  std::pair<std::vector<std::byte>, std::vector<std::byte>> KvAndX(size_t i, int64_t layer) {
    const Model& model = *maker_.model;
    const int64_t rows = prompts_[i];
    std::mt19937 random(static_cast<uint32_t>(100 * i + layer));
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(rows * model.config().hidden));
    for (float& value : values) value = normal(random);
    DeviceMemory memory(maker_.device);
    ForwardScratch scratch(*maker_.device);
    Tensor x = memory.NewTensor(values, rows, maker_.device->compute_dtype());
    BufferRef stored = x.ref;
    if (const RowForm form = XFormOf(model, *maker_.device); IsQuantised(form)) {
      stored = memory.NewBytes(
          std::vector<std::byte>(static_cast<size_t>(rows * RowFormBytes(form, model.config().hidden))));
      EXPECT_TRUE(maker_.device->QuantizeKv(memory.stream(), x, QuantOf(form), stored).ok());
    }
    const Tensor kv = memory.Empty(rows, 2 * model.config().kv_dim(), model.kv_dtype());
    const auto table = maker_.device->MakeKvTable(memory.stream(), KvLayout::OnePage(rows, rows));
    EXPECT_TRUE(model.Recompute({memory.stream(), scratch, **table, 0, rows}, layer, x, kv.ref).ok());
    return {memory.ReadBytes(kv.ref), memory.ReadBytes(stored)};
  }

  // Rows from `first` on; `bytes` has all of the prompt.
  void Write(const LeaseId& lease, int64_t layer, const std::vector<std::byte>& bytes, SliceKind kind, size_t i,
             int64_t first = 0) {
    auto write = store_->BeginWrite(lease, layer, first, prompts_[i], kind);
    RUNAHEAD_CHECK(write.ok() && write->ready().Wait().ok());
    const std::byte* from = bytes.data() + bytes.size() / static_cast<size_t>(prompts_[i]) * static_cast<size_t>(first);
    for (const BufferRef& to : write->destination()) {
      std::memcpy(to.data(), from, to.size);
      from += to.size;
    }
    RUNAHEAD_CHECK(write->Commit().Wait().ok());
  }

  void PoisonIn(const KvArena& arena, size_t i, int64_t begin, int64_t end) {
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) PoisonLayer(arena, i, layer, begin, end);
  }
  void PoisonLayer(const KvArena& arena, size_t i, int64_t layer, int64_t begin, int64_t end) {
    for (const KvSpan& span : arena.Spans(sequences_[i]->kv.blocks(), layer, begin, end)) {
      std::memset(span.rows.data(), 0xff, span.rows.size);
    }
  }

  const LoadedModel &loaded_, &maker_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Device> host_ = *NewCpuDevice({.threads = 1});  // quantises
  DeviceMemory memory_;
  const std::vector<int64_t> prompts_;
  const bool with_x_;
  const int64_t kv_from_;
  std::unique_ptr<KvStore> store_;
  std::vector<std::unique_ptr<Sequence>> sequences_;  // end before the store does
  std::unique_ptr<StepLoop> loop_;
};

}  // namespace runahead
