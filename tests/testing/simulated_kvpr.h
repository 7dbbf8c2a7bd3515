// Decode steps of KVPR with a large model's shape on a simulated GPU: which calls a layer takes, and how long.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "scheduler/recompute/tier_plan.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/simulated_device.h"
#include "tests/testing/solved_split.h"
#include "tests/testing/synthetic_gguf.h"
#include "worker/decode/kvpr/kvpr_loop.h"
#include "worker/format/gguf.h"
#include "worker/kv/store.h"
#include "worker/model/model.h"

namespace runahead::testing {

// A checkpoint whose tensors are zeros that take no memory.
inline std::shared_ptr<const ModelFile> EmptyCheckpoint(const SyntheticModel& model) {
  class Zeros final : public TensorSink {
   public:
    explicit Zeros(GgufBuilder& file) : file_(file) {}
    void Matrix(const std::string& name, WeightType type, int64_t columns, int64_t rows, float) override {
      Add(name, type, {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)},
          WeightRowBytes(type, columns) * static_cast<size_t>(rows));
    }
    void Norm(const std::string& name, int64_t size) override {
      Add(name, WeightType::kF32, {static_cast<uint64_t>(size)}, 4 * static_cast<size_t>(size));
    }
    void Bias(const std::string& name, int64_t size) override { Norm(name, size); }
    void Values(const std::string& name, const std::vector<float>& values) override {
      Norm(name, static_cast<int64_t>(values.size()));
    }
    size_t bytes = 0;

   private:
    void Add(const std::string& name, WeightType type, const std::vector<uint64_t>& dims, size_t size) {
      bytes = (bytes + 31) / 32 * 32;
      file_.AddTensorEntry(name, static_cast<uint32_t>(type), dims, bytes);
      bytes += size;
    }
    GgufBuilder& file_;
  };
  GgufBuilder file;
  Zeros tensors(file);
  RUNAHEAD_CHECK(AddSyntheticModel(model, file, tensors).ok());
  const std::string head = file.Head();
  SimulatedDevice memory({});
  const std::shared_ptr<Buffer> whole = *memory.Allocate(head.size() + tensors.bytes, MemoryKind::kHost);
  std::memcpy(whole->data(), head.data(), head.size());
  return *ParseGguf(model.name, absl::MakeConstSpan(whole->data(), whole->size()), whole);
}

// That of the paper. Beside it the layers of the whole model, over which budgets of device memory are shared out.
inline SyntheticModel Opt67B(int64_t layers) {
  SyntheticModel model;
  model.name = "opt-6.7b";
  model.family = SyntheticFamily::kOpt;
  model.layers = layers;
  model.hidden = 4096;
  model.heads = model.kv_heads = 32;
  model.ffn = 16384;
  model.vocab = 50272;
  model.context_length = 2048;
  model.SetWeightType(WeightType::kBF16);
  return model;
}
inline constexpr int64_t kOpt67BLayers = 32;

// What the model's lanes take where only bytes and operations do.
inline LaneCosts IdealCosts(const Model& model, const SimulatedRates& rates) {
  const ModelConfig& config = model.config();
  const double kv = static_cast<double>(model.kv_row_bytes());
  double weights = 0;
  for (const auto& matrix : model.Matrices(0)) weights += static_cast<double>(matrix->rows() * matrix->cols()) * 2;
  return {.link_bytes_per_s = rates.link_bytes_per_s,
          .kv_bytes = kv,
          .x_bytes = static_cast<double>(config.hidden) * 2,
          .recompute_s = 4.0 * static_cast<double>(config.hidden * config.kv_dim()) / rates.flops,
          .project_s = weights / rates.memory_bytes_per_s,
          .attend_s = kv / rates.memory_bytes_per_s};
}

class SimulatedKvpr {
 public:
  // `batch` sequences of `length` positions in the step that is counted. `resident_bytes` of device memory are for KV
  // and X that stay there, of all layers of `shape`, beside the staging.
  SimulatedKvpr(const SyntheticModel& shape, int64_t batch, int64_t length, int64_t resident_bytes,
                const SimulatedRates& rates)
      : device_(std::make_shared<SimulatedDevice>(rates)), batch_(batch), length_(length), resident_(resident_bytes) {
    model_ = *LoadModel(EmptyCheckpoint(shape), device_, kUseDecode | kUseRecompute, [](int, int) {});
    costs_ = IdealCosts(*model_, rates);
    stream_ = device_->NewStream("decode");
    const int64_t blocks = KvBlocksFor(length + 1) * batch;
    store_ = *KvStore::Create({.layers = shape.layers,
                               .row_bytes = model_->kv_row_bytes(),
                               .capacity_tokens = blocks * kKvBlockTokens,
                               .x_row_bytes = 2 * shape.hidden,
                               .x_form = RowForm::kBF16},
                              *device_, RealClock());
    for (int64_t i = 0; i < batch; ++i) sequences_.push_back(Sequence());
  }
  ~SimulatedKvpr() { device_->SetWaited(true); }

  struct Measured {
    SimulatedCounts counts;  // of one step, and what comes ahead of the next one
    double step_s = 0;       // from the end of the step before to its own
    LanePlan plan;
    double promised_s = 0;  // of the step, as TimesOfLanes has it
  };
  // Runs some steps, and measures the last one.
  Measured Run() {
    Measured measured;
    absl::Time before = absl::UnixEpoch();
    KvprOptions options{.max_rows = batch_};
    options.on_step = [&](const KvprStep& step) { measured.plan = step.plan; };
    options.device_bytes = resident_ == 0 ? 0 : resident_ + Staging(options);
    const auto loop = Loop(options);
    device_->SetWaited(false);
    for (int64_t position = length_ - kSteps; position < length_; ++position) {
      const SimulatedCounts counted = device_->counts;
      std::vector<DecodeRow> rows;
      for (const KvStore::Sequence& sequence : sequences_) rows.push_back({&sequence, 7, position});
      const auto logits = loop->Step(rows);
      RUNAHEAD_CHECK(logits.ok());
      const absl::Time done = device_->EndOf(*stream_);
      measured.step_s = absl::ToDoubleSeconds(done - before);
      before = done;
      measured.counts = device_->counts - counted;
    }
    device_->SetWaited(true);
    for (const KvStore::Sequence& sequence : sequences_) loop->Leave(sequence);
    measured.promised_s = PromisedSeconds();
    return measured;
  }

  int64_t layers() const { return model_->config().layers; }

 private:
  static constexpr int64_t kSteps = 5;

  std::unique_ptr<KvprLoop> Loop(const KvprOptions& options) {
    auto loop = KvprLoop::Create(*model_, *device_, *store_, *stream_, std::make_unique<SolvedSplit>(costs_), options);
    RUNAHEAD_CHECK(loop.ok());
    return *std::move(loop);
  }
  int64_t Staging(const KvprOptions& options) {
    const KvStoreOptions& stored = store_->options();
    return Loop(options)->device_bytes() +
           WriteBack::DeviceBytes({options.max_rows, stored.stored_row_bytes(), stored.x_row_bytes});
  }

  KvStore::Sequence Sequence() {
    const int64_t prompt = length_ - kSteps;
    const LeaseId lease = *store_->Reserve({.prompt_tokens = prompt, .total_tokens = length_ + 1, .with_x = true});
    for (int64_t layer = 0; layer < layers(); ++layer) {
      for (const SliceKind kind : {SliceKind::kKv, SliceKind::kX}) {
        auto write = store_->BeginWrite(lease, layer, 0, prompt, kind);
        RUNAHEAD_CHECK(write.ok() && write->Commit().Wait().ok());
      }
    }
    return *store_->Open(lease);
  }

  double PromisedSeconds() const {
    const std::vector<LaneShape> shapes(static_cast<size_t>(batch_), {.length = length_, .x_stored = length_ - 1});
    const TierBudget budget{
        .bytes = resident_, .layers = layers(), .kv_bytes = costs_.kv_bytes, .x_bytes = costs_.x_bytes};
    return PlanTiers(SplitObjective::kStep, costs_, budget, shapes)->lanes.times.layer_s *
           static_cast<double>(layers());
  }

  const std::shared_ptr<SimulatedDevice> device_;
  const int64_t batch_, length_, resident_;
  std::shared_ptr<const Model> model_;
  LaneCosts costs_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<KvStore> store_;
  std::vector<KvStore::Sequence> sequences_;
};

}  // namespace runahead::testing
