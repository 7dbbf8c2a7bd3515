#include "worker/decode/kvpr/kvpr_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/kv_table.h"
#include "kernels/base/status_macros.h"
#include "worker/decode/kvpr/step_tables.h"

namespace runahead {
namespace {

// Fewer make link and device wait for each other; more keep memory from what could stay resident.
constexpr int64_t kWantedSlots = 6;
constexpr int64_t kWantedChunkTokens = 1024;

// Slots of the loop's own scratch.
enum KeptSlot { kKeptQkv, kKeptKv };

std::vector<OwnRow> OwnRowsOf(absl::Span<const DecodeRow> rows) {
  std::vector<OwnRow> own;
  for (const DecodeRow& row : rows) own.push_back({row.sequence->blocks(), row.position, row.sequence->has_x()});
  return own;
}

StagingSize SizeOfStaging(int64_t row_bytes, int64_t least_tokens, int64_t weight_bytes, const KvprOptions& options) {
  StagingWish wish{.row_bytes = row_bytes,
                   .least_tokens = least_tokens,
                   .chunk_tokens = options.chunk_tokens > 0 ? options.chunk_tokens : kWantedChunkTokens,
                   .slots = options.slots > 0 ? options.slots : kWantedSlots};
  if (options.device_bytes > 0) wish.device_bytes = std::max<int64_t>(0, options.device_bytes - weight_bytes);
  return SizeOf(wish);
}

TierBudget TiersOf(const Model& model, const KvStoreOptions& stored, int64_t bytes) {
  const int64_t kv = model.kv_row_bytes();  // what is resident is not quantised
  return {.bytes = bytes,
          .layers = model.config().layers,
          .block_tokens = kKvBlockTokens,
          .kv_bytes = static_cast<double>(kv),
          .x_bytes = static_cast<double>(stored.x_row_bytes > 0 ? stored.x_row_bytes : kv)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvprLoop>> KvprLoop::Create(const Model& model, Device& device, const KvStore& store,
                                                           Stream& stream, std::unique_ptr<SplitSource> split,
                                                           const KvprOptions& options) {
  const ModelConfig& config = model.config();
  const KvStoreOptions& stored = store.options();
  if (stored.tier != MemoryKind::kHost || options.max_rows < 1) {
    return absl::InvalidArgumentError("KVPR decodes steps of one sequence or more over a store in host memory");
  }
  StagingRing::Options ring{.chunk_pages = 1,
                            .slots = 0,
                            .kv_row_bytes = model.kv_row_bytes(),
                            .stored_row_bytes = stored.stored_row_bytes(),
                            .x_row_bytes = stored.x_row_bytes};
  const int64_t row_bytes = StagingRing::SlotBytes(ring) / kChunkPageTokens;
  const int64_t weight_bytes = WeightStream::DeviceBytes(model);
  const StagingSize size = SizeOfStaging(row_bytes, PieceTokens(config.context_length), weight_bytes, options);
  ring.chunk_pages = size.chunk_tokens / kChunkPageTokens;
  ring.slots = size.slots;
  const WriteBack::Options rows{options.max_rows, stored.stored_row_bytes(), stored.x_row_bytes};
  const int64_t staging = ring.slots * StagingRing::SlotBytes(ring) + WriteBack::DeviceBytes(rows);
  if (options.device_bytes > 0 && weight_bytes + staging > options.device_bytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "KV passes through the device in chunks of %d tokens, which takes %d bytes at least%s, and %d are allowed: "
        "allow more, or take a model with a shorter context or smaller steps",
        size.chunk_tokens, staging,
        weight_bytes == 0 ? "" : absl::StrFormat(", two layers of streamed weights %d more", weight_bytes),
        options.device_bytes));
  }
  const int64_t resident = std::max<int64_t>(0, options.device_bytes - weight_bytes - staging);
  RUNAHEAD_ASSIGN_OR_RETURN(ResidentMemory memory, ResidentMemory::Create(device, config.layers, model.kv_row_bytes(),
                                                                          stored.x_row_bytes, resident));
  std::unique_ptr<KvprLoop> loop(
      new KvprLoop(model, device, store, stream, std::move(split), options, std::move(memory)));
  if (weight_bytes > 0) {
    RUNAHEAD_ASSIGN_OR_RETURN(loop->weights_, WeightStream::Create(model, device));
  }
  loop->chunk_pages_ = ring.chunk_pages;
  RUNAHEAD_ASSIGN_OR_RETURN(loop->ring_, StagingRing::Create(device, store, ring));
  RUNAHEAD_ASSIGN_OR_RETURN(loop->write_back_, WriteBack::Create(device, store, rows));
  loop->chunk_pass_.emplace(model, device, stream, loop->shared_, *loop->ring_, loop->memory_, stored);
  if (options.host != nullptr && !stored.quantisation.has_value()) {
    loop->host_lane_ = std::make_unique<HostLane>(model, device, *options.host, store, options.emulated_host_gbps);
  }
  return loop;
}

KvprLoop::KvprLoop(const Model& model, Device& device, const KvStore& store, Stream& stream,
                   std::unique_ptr<SplitSource> split, const KvprOptions& options, ResidentMemory memory)
    : model_(model),
      device_(device),
      store_(store),
      stream_(stream),
      split_(std::move(split)),
      options_(options),
      layers_(model.config().layers),
      quantisation_(store.options().quantisation),
      memory_(std::move(memory)),
      residency_(memory_, TiersOf(model, store.options(), memory_.bytes())),
      own_(device),
      shared_(device),
      kept_(device),
      written_(static_cast<size_t>(layers_)) {}

KvprLoop::~KvprLoop() {
  device_.Record(stream_).Wait().IgnoreError();
}

absl::StatusOr<Tensor> KvprLoop::Step(absl::Span<const DecodeRow> rows) {
  Report();
  if (static_cast<int64_t>(rows.size()) > options_.max_rows) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a step of %d sequences, and the loop was made for %d", rows.size(), options_.max_rows));
  }
  if (!next_.has_value() || !IsPlanOf(*next_, rows)) {
    next_.reset();
    RUNAHEAD_ASSIGN_OR_RETURN(next_, Plan(rows));
  }
  now_ = *std::exchange(next_, std::nullopt);
  ForwardBatch batch;
  batch.batch_invariant = true;
  batch.kv.page_tokens = kKvBlockTokens;
  for (const DecodeRow& row : rows) {
    batch.logit_rows.push_back(static_cast<int64_t>(batch.ids.size()));
    batch.ids.push_back(row.token);
    batch.kv.sequences.push_back({.queries = 1, .length = row.position + 1});
  }
  LayerPass pass(model_, device_, stream_, {own_, shared_}, std::move(batch));
  if (const absl::Status status = Run(pass, rows); !status.ok()) {
    for (const ResidentKey& key : now_.keys) residency_.Distrust(key.sequence);
    if (weights_ != nullptr) weights_->ReleaseAll(device_.Record(stream_));
    now_ = {};
    return status;
  }
  for (size_t i = 0; i < now_.keys.size(); ++i) {
    residency_.Commit(now_.keys[i], now_.residents[i], now_.plan.cuts[i].recomputed_end);
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor logits, Logits(pass));
  unreported_ = KvprStep{now_.plan, now_.times, memory_.used_bytes()};
  if (!PlanAhead(rows).ok()) next_.reset();  // the next step plans again, and says why
  return logits;
}

absl::StatusOr<KvprLoop::LoadedStep> KvprLoop::Plan(absl::Span<const DecodeRow> rows) {
  LoadedStep planned;
  for (const DecodeRow& row : rows) {
    const int64_t length = row.position + 1;
    planned.keys.push_back({row.sequence, length, row.sequence->has_x() ? row.position : 0, row.sequence->kv_from()});
    planned.lengths.push_back(length);
    planned.leases.push_back(row.sequence->lease_number());
  }
  RUNAHEAD_ASSIGN_OR_RETURN(planned.residents, residency_.Prepare(planned.keys, split_->costs()));
  for (size_t i = 0; i < rows.size(); ++i) {
    const ResidentKey& key = planned.keys[i];
    const ResidentPart& part = planned.residents[i];
    planned.shapes.push_back({.length = key.length,
                              .x_stored = key.x_stored,
                              .l_min = part.l_min,
                              .piece_tokens = PieceTokens(key.length),
                              .x_resident = part.x_resident,
                              .resident_from = part.resident_from,
                              .may_attend_on_host = part.first_kv * kKvBlockTokens >= part.resident_from});
    const auto blocks = rows[i].sequence->blocks();
    planned.stored.push_back({{blocks.begin(), blocks.end()}, rows[i].position, part.x_resident});
  }
  RUNAHEAD_ASSIGN_OR_RETURN(planned.plan, split_->Plan(planned.shapes));
  RUNAHEAD_CHECK(host_lane_ != nullptr || planned.plan.rows.host == 0);
  planned.chunks = CutIntoChunks(planned.shapes, planned.plan.cuts, chunk_pages_);
  planned.times = next_times_ != nullptr ? std::exchange(next_times_, nullptr) : std::make_shared<StepTimes>();
  return planned;
}

bool KvprLoop::IsPlanOf(const PlannedStep& planned, absl::Span<const DecodeRow> rows) const {
  return std::equal(planned.keys.begin(), planned.keys.end(), rows.begin(), rows.end(),
                    [](const ResidentKey& key, const DecodeRow& row) {
                      return key.sequence == row.sequence && key.length == row.position + 1;
                    });
}

// The same sequences, a position further: what the step has of tokens does not matter to its loads.
absl::Status KvprLoop::PlanAhead(absl::Span<const DecodeRow> rows) {
  std::vector<DecodeRow> ahead(rows.begin(), rows.end());
  for (DecodeRow& row : ahead) {
    ++row.position;
    if (row.position >= static_cast<int64_t>(row.sequence->blocks().size()) * kKvBlockTokens ||
        row.position >= model_.config().context_length) {
      return absl::OkStatus();  // it ends here, so the next step is another one
    }
  }
  RUNAHEAD_ASSIGN_OR_RETURN(next_, Plan(ahead));
  return LoadUpTo(*next_, ring_->slots());
}

absl::Status KvprLoop::LoadUpTo(LoadedStep& step, int64_t loads) {
  const auto chunks = static_cast<int64_t>(step.chunks.size());
  for (; step.loads < std::min(loads, layers_ * chunks); ++step.loads) {
    const int64_t layer = step.loads / chunks;
    RUNAHEAD_ASSIGN_OR_RETURN(const StagingRing::Loaded loaded, ring_->Load(layer, step.chunks[step.loads % chunks],
                                                                            step.stored, written_[layer], step.times));
    step.under_way.push_back(loaded);
  }
  return absl::OkStatus();
}

// What comes once a step counts as the projections of the layer beside it.
absl::Status KvprLoop::Begin(LayerPass& pass) {
  const LaneSpan span(device_, stream_, now_.times, StepLane::kProject, 0);
  RUNAHEAD_RETURN_IF_ERROR(pass.Begin());
  return MakeTables();
}

absl::StatusOr<Tensor> KvprLoop::Logits(LayerPass& pass) {
  const LaneSpan span(device_, stream_, now_.times, StepLane::kProject, layers_ - 1);
  return pass.Logits();
}

absl::Status KvprLoop::MakeTables() {
  tables_.clear();
  for (const StepChunk& chunk : now_.chunks) {
    ChunkTables tables;
    RUNAHEAD_ASSIGN_OR_RETURN(tables.attend, device_.MakeKvTable(stream_, ChunkLayout(chunk, now_.lengths)));
    if (chunk.x_rows > 0) {
      RUNAHEAD_ASSIGN_OR_RETURN(tables.recompute, device_.MakeKvTable(stream_, RecomputeLayout(chunk)));
    }
    tables.own = OwnRowsIn(chunk, now_.lengths);
    tables_.push_back(std::move(tables));
  }
  const auto rows = static_cast<int64_t>(now_.lengths.size());
  RUNAHEAD_ASSIGN_OR_RETURN(fresh_, device_.MakeKvTable(stream_, FreshLayout(rows)));
  KvLayout window = WindowLayout(memory_, now_);
  window_own_ = OwnRowsInWindow(window);
  window_ = nullptr;
  if (window_own_.empty()) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(window_, device_.MakeKvTable(stream_, std::move(window)));
  return absl::OkStatus();
}

absl::Status KvprLoop::Run(LayerPass& pass, absl::Span<const DecodeRow> rows) {
  RUNAHEAD_RETURN_IF_ERROR(LoadUpTo(now_, ring_->slots()));
  RUNAHEAD_RETURN_IF_ERROR(Begin(pass));
  if (host_lane_ != nullptr) {
    RUNAHEAD_RETURN_IF_ERROR(host_lane_->BeginStep(now_));
  }
  const std::vector<OwnRow> own = OwnRowsOf(rows);
  for (int64_t layer = 0; layer < layers_; ++layer) {
    RUNAHEAD_RETURN_IF_ERROR(LoadWeights(pass, layer));
    RUNAHEAD_RETURN_IF_ERROR(ProjectLayer(pass, layer));
    const Event projected = device_.Record(stream_);
    RUNAHEAD_ASSIGN_OR_RETURN(written_[layer], write_back_->Send(layer, own, projected, now_.times));
    if (HasHostLane()) {
      RUNAHEAD_RETURN_IF_ERROR(host_lane_->Start(layer, pass.q(), projected));
    }
    for (size_t chunk = 0; chunk < now_.chunks.size(); ++chunk) {
      RUNAHEAD_RETURN_IF_ERROR(RunChunk(pass, layer, static_cast<int64_t>(chunk)));
    }
    RUNAHEAD_RETURN_IF_ERROR(FinishLayer(pass, layer));
  }
  return absl::OkStatus();
}

// The next layer's go to the slot that the layer before this one leaves, while this one computes. Those of the next
// step's first layer do so behind the last.
absl::Status KvprLoop::LoadWeights(LayerPass& pass, int64_t layer) {
  if (weights_ == nullptr) return absl::OkStatus();
  RUNAHEAD_RETURN_IF_ERROR(weights_->Load(layer, now_.times));
  if (layer + 1 < layers_) {
    RUNAHEAD_RETURN_IF_ERROR(weights_->Load(layer + 1, now_.times));
  } else {
    next_times_ = std::make_shared<StepTimes>();
    RUNAHEAD_RETURN_IF_ERROR(weights_->Load(0, next_times_));
  }
  device_.WaitFor(stream_, weights_->At(layer).first_there);
  pass.UseMatrices(weights_->At(layer).matrices);
  return absl::OkStatus();
}

// Q, K and V of the new rows; K, V and X to what goes back to the host.
absl::Status KvprLoop::ProjectLayer(LayerPass& pass, int64_t layer) {
  const AttentionShape& shape = model_.attention(layer);
  const int64_t rows = pass.rows(), q_cols = shape.heads * shape.head_dim, kv_cols = 2 * model_.config().kv_dim();
  RUNAHEAD_ASSIGN_OR_RETURN(qkv_, kept_.Get(kKeptQkv, DType::kF32, rows, q_cols + kv_cols));
  device_.WaitFor(stream_, write_back_->Free(layer));
  const LaneSpan span(device_, stream_, now_.times, StepLane::kProject, layer);
  Tensor x;
  if (store_.x_arena() != nullptr) {
    x = MakeTensor(write_back_->X(layer), device_.compute_dtype(), rows, model_.config().hidden);
  }
  RUNAHEAD_RETURN_IF_ERROR(pass.ProjectQkv(layer, qkv_, x));
  const BufferRef stored = write_back_->Kv(layer);
  if (!quantisation_.has_value()) return device_.StoreQkv(stream_, qkv_, shape, pass.q(), *fresh_, 0, stored);
  // What is attended to is what the store will give.
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor kv, kept_.Get(kKeptKv, shape.kv_dtype, rows, kv_cols));
  RUNAHEAD_RETURN_IF_ERROR(device_.StoreQkv(stream_, qkv_, shape, pass.q(), *fresh_, 0, kv.ref));
  RUNAHEAD_RETURN_IF_ERROR(device_.QuantizeKv(stream_, kv, quantisation_->quant, stored));
  return device_.DequantizeKv(stream_, stored, quantisation_->quant, qkv_.Cols(q_cols, kv_cols));
}

absl::Status KvprLoop::RunChunk(LayerPass& pass, int64_t layer, int64_t index) {
  const int64_t done = layer * static_cast<int64_t>(now_.chunks.size()) + index;
  RUNAHEAD_RETURN_IF_ERROR(LoadUpTo(now_, done + ring_->slots()));
  RUNAHEAD_RETURN_IF_ERROR(RecomputeUpTo(done + 1));
  const StagingRing::Loaded loaded = now_.under_way.front();
  RUNAHEAD_RETURN_IF_ERROR(chunk_pass_->Attend(pass, {layer, now_, now_.chunks[index], tables_[index], loaded}, qkv_));
  now_.under_way.pop_front();
  ring_->Release(loaded, device_.Record(stream_));
  return absl::OkStatus();
}

absl::Status KvprLoop::RecomputeUpTo(int64_t end) {
  const auto chunks = static_cast<int64_t>(now_.chunks.size());
  const int64_t attended = now_.loads - static_cast<int64_t>(now_.under_way.size());
  for (; now_.recomputed < std::min(end, now_.loads); ++now_.recomputed) {
    const int64_t layer = now_.recomputed / chunks, index = now_.recomputed % chunks;
    LayerMatrices matrices;
    if (weights_ != nullptr && now_.chunks[index].x_rows > 0) {
      device_.WaitFor(stream_, weights_->At(layer).first_there);
      matrices = weights_->At(layer).matrices;
    }
    RUNAHEAD_RETURN_IF_ERROR(chunk_pass_->Recompute(
        {layer, now_, now_.chunks[index], tables_[index], now_.under_way[now_.recomputed - attended], matrices}));
  }
  return absl::OkStatus();
}

// While the host attends the device makes K and V of the next layer.
absl::Status KvprLoop::FinishHostLane(LayerPass& pass, int64_t layer) {
  const int64_t done = (layer + 1) * static_cast<int64_t>(now_.chunks.size());
  RUNAHEAD_RETURN_IF_ERROR(LoadUpTo(now_, done + ring_->slots()));
  RUNAHEAD_RETURN_IF_ERROR(RecomputeUpTo(done + static_cast<int64_t>(now_.chunks.size())));
  RUNAHEAD_ASSIGN_OR_RETURN(const MutTensor partials, pass.Partials(layer));
  RUNAHEAD_ASSIGN_OR_RETURN(const Event there, host_lane_->Finish(layer, partials));
  device_.WaitFor(stream_, there);
  return absl::OkStatus();
}

// The rest of the layer: what is attended without chunks; merge, output projection, MLP. Waits, for the host or for
// weights, are not the time that these take.
absl::Status KvprLoop::FinishLayer(LayerPass& pass, int64_t layer) {
  RUNAHEAD_RETURN_IF_ERROR(RunWindow(pass, layer));
  if (HasHostLane()) {
    RUNAHEAD_RETURN_IF_ERROR(FinishHostLane(pass, layer));
  }
  if (weights_ != nullptr) device_.WaitFor(stream_, weights_->At(layer).all_there);
  {
    const LaneSpan span(device_, stream_, now_.times, StepLane::kProject, layer);
    RUNAHEAD_RETURN_IF_ERROR(pass.Finish(layer));
  }
  if (weights_ != nullptr) weights_->Release(layer, device_.Record(stream_));
  return absl::OkStatus();
}

absl::Status KvprLoop::RunWindow(LayerPass& pass, int64_t layer) {
  if (window_ == nullptr) return absl::OkStatus();
  const LaneSpan span(device_, stream_, now_.times, StepLane::kProject, layer);
  RUNAHEAD_RETURN_IF_ERROR(
      StoreOwnRows(device_, stream_, model_.attention(layer), qkv_, window_own_, *window_, memory_.KvLayer(layer)));
  return pass.AttendPieces(layer, *window_, memory_.KvLayer(layer));
}

void KvprLoop::Leave(const KvStore::Sequence& sequence) {
  Report();
  if (next_.has_value() && std::any_of(next_->keys.begin(), next_->keys.end(),
                                       [&](const ResidentKey& key) { return key.sequence == &sequence; })) {
    next_.reset();
    ring_->Settle();
  }
  write_back_->Settle();
  if (host_lane_ != nullptr) host_lane_->Settle();
  residency_.Leave(&sequence);
  auto report = reports_.extract(&sequence);
  if (report.empty() || !options_.on_leave) return;
  report.mapped().resident_bytes = memory_.used_bytes();
  options_.on_leave(report.mapped());
}

void KvprLoop::Report() {
  if (!unreported_.has_value()) return;
  const KvprStep step = *std::exchange(unreported_, std::nullopt);
  for (size_t i = 0; i < now_.keys.size(); ++i) {
    const LaneCuts& cut = step.plan.cuts[i];
    KvprSequenceReport& report = reports_[now_.keys[i].sequence];
    report.lease = now_.leases[i];
    ++report.steps;
    report.recomputed += cut.recomputed_end;
    report.streamed += cut.streamed_end - cut.recomputed_end;
    report.on_host += cut.host_end - cut.streamed_end;
    report.resident += now_.lengths[i] - cut.host_end;
    report.overlap += step.times->OverlapRatio();
  }
  const auto of_a_layer = [&](double seconds) { return seconds / static_cast<double>(layers_); };
  split_->Observe(step.plan, {.link_s = of_a_layer(step.times->LinkSeconds()),
                              .recompute_s = of_a_layer(step.times->Busy(StepLane::kRecompute)),
                              .project_s = of_a_layer(step.times->Busy(StepLane::kProject)),
                              .attend_s = of_a_layer(step.times->Busy(StepLane::kAttend)),
                              .signal_s = of_a_layer(step.times->SignalSeconds()),
                              .host_attend_s = of_a_layer(step.times->Busy(StepLane::kHost)),
                              .layer_s = of_a_layer(step.times->DeviceSeconds())});
  if (options_.on_step) options_.on_step(step);
}

}  // namespace runahead
