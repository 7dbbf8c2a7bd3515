// KVPR: a decode step over stores in host memory, across a link. In every layer part of KV is copied to the device,
// part is recomputed there from X while copies run, and part stays there (docs/kvpr.md).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker/decode/kvpr/chunk_pass.h"
#include "worker/decode/kvpr/host_lane.h"
#include "worker/decode/kvpr/planned_step.h"
#include "worker/decode/kvpr/residency.h"
#include "worker/decode/kvpr/split_source.h"
#include "worker/decode/kvpr/staging_ring.h"
#include "worker/decode/kvpr/step_times.h"
#include "worker/decode/kvpr/weight_stream.h"
#include "worker/decode/kvpr/write_back.h"
#include "worker/decode/step_loop.h"
#include "worker/decode/step_rows.h"
#include "worker/kv/resident_memory.h"
#include "worker/model/layer_pass.h"

namespace runahead {

// A step that is done.
struct KvprStep {
  LanePlan plan;
  std::shared_ptr<const StepTimes> times;
  int64_t resident_bytes = 0;  // of KV and X, on the device, after it
  SplitRest rest = SplitRest::kNone;
};

// What the steps of one sequence took.
struct KvprSequenceReport {
  std::string request_id;
  uint64_t lease = 0;  // LeaseId::number
  int64_t steps = 0;
  // Positions, added up over the steps; the same in each layer.
  int64_t recomputed = 0, streamed = 0, on_host = 0, resident = 0;
  double overlap = 0;                           // OverlapRatio of the steps, added up
  double predicted_s = 0, measured_s = 0;       // of the steps, added up
  std::array<int64_t, kLaneBounds> bound_by{};  // steps, by what bounds them as predicted
  int64_t rests = 0;                            // steps without the solver's split
  SplitRest rest = SplitRest::kNone;            // when the sequence left, and for how long it had been so
  absl::Duration rest_for = absl::ZeroDuration();
  int64_t resident_bytes = 0;  // of KV and X of all other sequences, on the device
};

struct KvprOptions {
  int64_t max_rows = 0;  // of a step
  // For slots of streamed weights, staging and what stays resident; 0: staging as it is best, and nothing resident.
  int64_t device_bytes = 0;
  // Of a staging slot; 0: 1,024, or more for steps of more rows, or one piece of the model's longest context where
  // larger.
  int64_t chunk_tokens = 0;
  int64_t slots = 0;  // of staging, at least 2; 0: as is best where device_bytes allow it
  // l is at most the prompt's length, as in KVPR's paper; else whatever X is stored for, that of the output among it.
  bool of_prompt_only = false;
  // Computes the host lane, on host memory and with threads that the device does without; outlives the loop. Null, or
  // where the store quantises: there is none, and no plan may give it anything.
  Device* host = nullptr;
  double emulated_host_gbps = 0;  // HostAttention::emulated_gbps
  // On the loop's thread: at the next step or Leave, and at Leave.
  std::function<void(const KvprStep&)> on_step = {};
  std::function<void(const KvprSequenceReport&)> on_leave = {};
  // In OnIdle: something may be measured, and the split told.
  std::function<void(SplitSource&)> on_idle = {};
};

// All that is given to Create outlives the loop. Everything that a step takes is allocated by Create, but for scratch
// memory of the passes, which grows to the largest step.
class KvprLoop final : public StepLoop {
 public:
  // `store` is in host memory; so may be the homes of the model's weights, which are then brought over in every step.
  // RESOURCE_EXHAUSTED, with both sizes, where device_bytes do not hold the least staging and two layers of weights.
  static absl::StatusOr<std::unique_ptr<KvprLoop>> Create(const Model& model, Device& device, const KvStore& store,
                                                          Stream& stream, std::unique_ptr<SplitSource> split,
                                                          const KvprOptions& options);
  ~KvprLoop() override;

  absl::StatusOr<Tensor> Step(absl::Span<const DecodeRow> rows) override;
  // Its pieces are short, for waits and times lie between them, and their buffers change by turns.
  bool repeats() const override { return false; }
  absl::Status CheckTokens(int64_t) const override { return absl::OkStatus(); }
  void Leave(const KvStore::Sequence& sequence) override;
  bool SettleKv(const KvStore::Sequence& sequence) override;
  void OnIdle() override;

  // Scratch memory of a step of max_rows that is taken beside what KvprOptions::device_bytes are for, and beside that
  // of plain decode (DecodeStepBytes).
  static int64_t ScratchBytes(const Model& model, const Device& device, const KvStoreOptions& stored, int64_t max_rows);
  int64_t staging_bytes() const { return ring_->bytes(); }
  int64_t device_bytes() const { return ring_->bytes() + memory_.bytes() + WeightStream::DeviceBytes(model_); }
  int64_t resident_bytes() const { return memory_.used_bytes(); }
  const SplitSource& split() const { return *split_; }

 private:
  // A step whose first loads may be under way.
  struct LoadedStep : PlannedStep {
    int64_t loads = 0;       // enqueued, counted over layers and chunks
    int64_t recomputed = 0;  // of them, those whose recomputation is enqueued
    std::deque<StagingRing::Loaded> under_way;
    std::vector<ChunkTables> tables;  // of each chunk, as far as they are made
  };

  KvprLoop(const Model& model, Device& device, const KvStore& store, Stream& stream, std::unique_ptr<SplitSource> split,
           const KvprOptions& options, ResidentMemory memory);

  absl::StatusOr<LoadedStep> Plan(absl::Span<const SequenceRows> sequences);
  // Of a sequence: up to where X is there to recompute from, and from where on KV is in the store.
  int64_t XStored(const SequenceRows& of) const;
  int64_t KvFrom(const KvStore::Sequence& sequence) const;
  bool IsPlanOf(const PlannedStep& planned, absl::Span<const SequenceRows> sequences) const;
  absl::Status Run(LayerPass& pass, absl::Span<const DecodeRow> rows);
  absl::Status Begin(LayerPass& pass);
  absl::StatusOr<Tensor> Logits(LayerPass& pass);
  absl::Status MakeTables();
  // Enqueues loads until `loads` of the step are, as far as it has so many.
  absl::Status LoadUpTo(LoadedStep& step, int64_t loads);
  // Enqueues loads of the layer's weights, where they are streamed, and of those of the layer that comes next; and
  // the wait for Q's, K's and V's, behind what can be done without Q's.
  absl::Status LoadWeights(LayerPass& pass, int64_t layer);
  absl::Status ProjectLayer(LayerPass& pass, int64_t layer);
  absl::Status RunChunk(LayerPass& pass, int64_t layer, int64_t index);
  // KV of the chunk that is in no store yet, as it was recomputed, goes there; the slot is free behind that.
  absl::StatusOr<Event> SaveRecomputed(int64_t layer, const StepChunk& chunk, const StagingRing::Loaded& loaded);
  // Enqueues what the loads [recomputed, end) of the step give, as far as they are under way.
  absl::Status RecomputeUpTo(LoadedStep& step, int64_t end);
  bool HasHostLane() const { return host_lane_ != nullptr && host_lane_->has_work(); }
  absl::Status FinishHostLane(LayerPass& pass, absl::Span<const DecodeRow> rows, int64_t layer);
  absl::Status FinishLayer(LayerPass& pass, absl::Span<const DecodeRow> rows, int64_t layer);
  absl::Status RunWindow(LayerPass& pass, int64_t layer);
  absl::Status MakeRecomputeTables(LoadedStep& step);
  // The step's lanes are enqueued: keeps the books, and begins with the step that follows if the same sequences go on.
  // Nothing where that was done.
  void BeginNext(absl::Span<const DecodeRow> rows);
  absl::Status PlanAhead(absl::Span<const DecodeRow> rows);
  void DropNext();
  void Report();

  const Model& model_;
  Device& device_;
  const KvStore& store_;
  Stream& stream_;
  const std::unique_ptr<SplitSource> split_;
  const KvprOptions options_;
  const int64_t layers_;
  const std::optional<KvQuantisation> quantisation_;
  ResidentMemory memory_;
  Residency residency_;
  std::unique_ptr<StagingRing> ring_;
  std::unique_ptr<WriteBack> write_back_;
  std::optional<ChunkPass> chunk_pass_;
  std::unique_ptr<WeightStream> weights_;  // null: the model's weights are resident
  std::unique_ptr<HostLane> host_lane_;    // null: none
  ForwardScratch own_, shared_, kept_;     // of passes; what the loop itself keeps over a layer
  int64_t chunk_pages_ = 0;

  LoadedStep now_;                          // the step that is enqueued
  std::optional<LoadedStep> next_;          // the step after it, if the same sequences go on
  bool next_begun_ = false;                 // BeginNext was called for the step that is enqueued
  std::shared_ptr<StepTimes> next_times_;   // of the step after it, once its first weights are on their way
  std::vector<Event> written_;              // of each layer: what the last step wrote is in the stores
  absl::flat_hash_set<const void*> whole_;  // sequences whose KV came as X in part, and is in the store by now
  // Of the step that is enqueued.
  Tensor qkv_;                                     // of the layer
  std::shared_ptr<const KvTable> window_, fresh_;  // what is resident, or null; the step's new rows
  std::vector<RowRun> window_own_;                 // the new rows that are resident
  std::optional<KvprStep> unreported_;
  std::vector<SpanRecorder*> recorders_;                          // of its rows that are traced
  absl::flat_hash_map<const void*, KvprSequenceReport> reports_;  // of the sequences that had steps
};

}  // namespace runahead
