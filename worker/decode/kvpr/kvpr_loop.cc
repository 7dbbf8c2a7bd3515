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
// Each chunk costs a GPU some twenty calls a layer, some microseconds each: of a large step's chunks each is larger. By
// so many positions for each sequence a layer of sequences of a thousand is four chunks.
constexpr int64_t kChunkTokensOfSequence = 256;
// Of large chunks fewer are enough: a layer is not many.
constexpr int64_t kWantedLargeSlots = 4;

// Slots of the loop's own scratch.
enum KeptSlot { kKeptQkv, kKeptKv };

std::vector<OwnRow> OwnRowsOf(absl::Span<const DecodeRow> rows) {
  std::vector<OwnRow> own;
  for (const DecodeRow& row : rows) own.push_back({row.sequence->blocks(), row.position, row.sequence->has_x()});
  return own;
}

StagingSize SizeOfStaging(int64_t row_bytes, int64_t least_tokens, int64_t weight_bytes, int64_t gemm_rows,
                          const KvprOptions& options) {
  const int64_t tokens =
      std::max(kWantedChunkTokens, std::min(gemm_rows * 4, options.max_rows * kChunkTokensOfSequence));
  const int64_t slots = tokens > kWantedChunkTokens ? kWantedLargeSlots : kWantedSlots;
  StagingWish wish{.row_bytes = row_bytes,
                   .least_tokens = least_tokens,
                   .chunk_tokens = options.chunk_tokens > 0 ? options.chunk_tokens : tokens,
                   .slots = options.slots > 0 ? options.slots : slots};
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
  const StagingSize size =
      SizeOfStaging(row_bytes, PieceTokens(config.context_length), weight_bytes, device.gemm_rows(), options);
  ring.chunk_pages = size.chunk_tokens / kChunkPageTokens;
  ring.slots = size.slots;
  const WriteBack::Options rows{options.max_rows, stored.stored_row_bytes(), stored.x_row_bytes};
  const int64_t staging = ring.slots * StagingRing::SlotBytes(ring) + WriteBack::DeviceBytes(rows);
  if (options.device_bytes > 0 && weight_bytes + staging > options.device_bytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "KV passes through the device in chunks of %d tokens, which takes %d bytes at least%s, and %d are allowed: "
        "allow more, or take a model with a shorter context or a smaller max_batch",
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

// K and V of what is recomputed at a time, where products do not write them to their rows, and K and V of the new rows
// before they are quantised; X of both likewise.
int64_t KvprLoop::ScratchBytes(const Model& model, const Device& device, const KvStoreOptions& stored,
                               int64_t max_rows) {
  const int64_t x = stored.x_row_bytes > 0 && IsQuantised(stored.x_form) ? model.config().hidden : 0;
  return (std::max(kRecomputeBlock, device.gemm_rows()) + max_rows) * (2 * model.config().kv_dim() + x) * 4;
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
        absl::StrFormat("a step of %d rows, and the loop was made for %d", rows.size(), options_.max_rows));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<SequenceRows> sequences, BySequence(rows));
  if (!next_.has_value() || !IsPlanOf(*next_, sequences)) {
    DropNext();
    RUNAHEAD_ASSIGN_OR_RETURN(next_, Plan(sequences));
  }
  now_ = *std::exchange(next_, std::nullopt);
  next_begun_ = false;
  ForwardBatch batch;
  batch.batch_invariant = true;
  batch.logit_rows = LogitRows(rows);
  batch.kv.page_tokens = kKvBlockTokens;
  batch.kv.by_pieces = true;
  for (const DecodeRow& row : rows) batch.ids.push_back(row.token);
  for (const SequenceRows& of : sequences) {
    batch.kv.sequences.push_back({.queries = of.count(), .length = of.length()});
  }
  LayerPass pass(model_, device_, stream_, {own_, shared_}, std::move(batch));
  if (const absl::Status status = Run(pass, rows); !status.ok()) {
    for (const ResidentKey& key : now_.keys) residency_.Distrust(key.sequence);
    if (weights_ != nullptr) weights_->ReleaseAll(device_.Record(stream_));
    DropNext();
    now_ = {};
    return status;
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor logits, Logits(pass));
  unreported_ = KvprStep{now_.plan, now_.times, memory_.used_bytes(), now_.rest};
  for (const SequenceRows& of : sequences) {
    if (SpanRecorder* const spans = of.rows.front().spans; spans != nullptr) recorders_.push_back(spans);
  }
  BeginNext(rows);
  return logits;
}

absl::Status KvprLoop::LoadUpTo(LoadedStep& step, int64_t loads) {
  const auto chunks = static_cast<int64_t>(step.chunks.size());
  for (; step.loads < std::min(loads, layers_ * chunks); ++step.loads) {
    const int64_t layer = step.loads / chunks, index = step.loads % chunks;
    // The others come behind the layer's first on the same stream.
    const Event after = index == 0 ? written_[layer] : Event();
    RUNAHEAD_ASSIGN_OR_RETURN(
        const StagingRing::Loaded loaded,
        ring_->Load(layer, model_.attention(layer).window, step.chunks[index], step.stored, after, step.times));
    step.under_way.push_back(loaded);
  }
  return absl::OkStatus();
}

// What comes once a step counts as the projections of the layer beside it.
absl::Status KvprLoop::Begin(LayerPass& pass) {
  const LaneSpan span(device_, stream_, now_.times, StepLane::kProject, 0);
  RUNAHEAD_RETURN_IF_ERROR(MakeTables());
  return pass.Begin();
}

absl::StatusOr<Tensor> KvprLoop::Logits(LayerPass& pass) {
  const LaneSpan span(device_, stream_, now_.times, StepLane::kProject, layers_ - 1);
  return pass.Logits();
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
    const Event projected = device_.Record(stream_), written_before = written_[layer];
    RUNAHEAD_ASSIGN_OR_RETURN(written_[layer], write_back_->Send(layer, own, projected, now_.times));
    if (HasHostLane()) {
      RUNAHEAD_RETURN_IF_ERROR(host_lane_->Start(layer, pass.q(), projected, written_before));
    }
    for (size_t chunk = 0; chunk < now_.chunks.size(); ++chunk) {
      RUNAHEAD_RETURN_IF_ERROR(RunChunk(pass, layer, static_cast<int64_t>(chunk)));
    }
    RUNAHEAD_RETURN_IF_ERROR(FinishLayer(pass, rows, layer));
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
  // Recomputation needs K's and V's rows only, which come first. Beside a host lane, which waits for q, it was done
  // while the host attended.
  if (!HasHostLane()) {
    RUNAHEAD_RETURN_IF_ERROR(RecomputeUpTo(now_, layer * static_cast<int64_t>(now_.chunks.size()) + 1));
  }
  device_.WaitFor(stream_, weights_->At(layer).qkv_there);
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
  XRows x;
  if (store_.x_arena() != nullptr) x = {write_back_->X(layer), store_.options().x_form, model_.config().hidden};
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
  RUNAHEAD_RETURN_IF_ERROR(RecomputeUpTo(now_, done + 1));
  const StagingRing::Loaded loaded = now_.under_way.front();
  RUNAHEAD_RETURN_IF_ERROR(
      chunk_pass_->Attend(pass, {layer, now_, now_.chunks[index], now_.tables[index], loaded}, qkv_));
  now_.under_way.pop_front();
  RUNAHEAD_ASSIGN_OR_RETURN(const Event free, SaveRecomputed(layer, now_.chunks[index], loaded));
  ring_->Release(loaded, free);
  return absl::OkStatus();
}

absl::StatusOr<Event> KvprLoop::SaveRecomputed(int64_t layer, const StepChunk& chunk,
                                               const StagingRing::Loaded& loaded) {
  Event free = device_.Record(stream_);
  for (const ChunkPart& part : chunk.parts) {
    const int64_t begin = std::max(part.begin, now_.FirstSeenBy(part.sequence, model_.attention(layer).window));
    const int64_t end = std::min(part.recompute_end, now_.keys[part.sequence].kv_from);
    if (begin >= end) continue;
    const BufferRef rows = ring_->StoredRows(loaded, part.Row(begin), end - begin);
    RUNAHEAD_ASSIGN_OR_RETURN(
        free, write_back_->Save(layer, now_.stored[part.sequence].blocks, begin, rows, free, now_.times));
    written_[layer] = free;
  }
  return free;
}

absl::Status KvprLoop::RecomputeUpTo(LoadedStep& step, int64_t end) {
  const auto chunks = static_cast<int64_t>(step.chunks.size());
  const int64_t attended = step.loads - static_cast<int64_t>(step.under_way.size());
  for (; step.recomputed < std::min(end, step.loads); ++step.recomputed) {
    const int64_t layer = step.recomputed / chunks, index = step.recomputed % chunks;
    LayerMatrices matrices;
    if (weights_ != nullptr && step.chunks[index].x_pages > 0) {
      device_.WaitFor(stream_, weights_->At(layer).kv_there);
      matrices = weights_->At(layer).matrices;
    }
    RUNAHEAD_RETURN_IF_ERROR(
        chunk_pass_->Recompute({layer, step, step.chunks[index], step.tables[index],
                                step.under_way[static_cast<size_t>(step.recomputed - attended)], matrices}));
  }
  return absl::OkStatus();
}

// While the host attends the device makes K and V of the next layer, be it of the next step.
absl::Status KvprLoop::FinishHostLane(LayerPass& pass, absl::Span<const DecodeRow> rows, int64_t layer) {
  const auto chunks = static_cast<int64_t>(now_.chunks.size());
  if (layer + 1 < layers_) {
    RUNAHEAD_RETURN_IF_ERROR(LoadUpTo(now_, (layer + 1) * chunks + ring_->slots()));
    RUNAHEAD_RETURN_IF_ERROR(RecomputeUpTo(now_, (layer + 2) * chunks));
  } else {
    BeginNext(rows);
    if (next_.has_value()) {
      RUNAHEAD_RETURN_IF_ERROR(MakeRecomputeTables(*next_));
      RUNAHEAD_RETURN_IF_ERROR(RecomputeUpTo(*next_, static_cast<int64_t>(next_->chunks.size())));
    }
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const MutTensor partials, pass.Partials(layer));
  RUNAHEAD_ASSIGN_OR_RETURN(const Event there, host_lane_->Finish(layer, partials));
  device_.WaitFor(stream_, there);
  return absl::OkStatus();
}

// The rest of the layer: what is attended without chunks; merge, output projection, MLP. Waits, for the host or for
// weights, are not the time that these take.
absl::Status KvprLoop::FinishLayer(LayerPass& pass, absl::Span<const DecodeRow> rows, int64_t layer) {
  RUNAHEAD_RETURN_IF_ERROR(RunWindow(pass, layer));
  if (HasHostLane()) {
    RUNAHEAD_RETURN_IF_ERROR(FinishHostLane(pass, rows, layer));
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
  const LaneSpan span(device_, stream_, now_.times, StepLane::kWindow, layer);
  RUNAHEAD_RETURN_IF_ERROR(
      StoreOwnRows(device_, stream_, model_.attention(layer), qkv_, window_own_, *window_, memory_.KvLayer(layer)));
  return pass.AttendPieces(layer, *window_, memory_.KvLayer(layer));
}

}  // namespace runahead
