// One worker's place in the prefill line: runs jobs one after the other, in the order of their Starts; but one that is
// to be interleaved goes while a longer one is half done.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "kernels/base/device.h"
#include "kernels/base/mutex.h"
#include "scheduler/placement/interleave.h"
#include "server/base/progress_meter.h"
#include "worker/model/model.h"
#include "worker/model/token_sampler.h"
#include "worker/prefill/bell.h"
#include "worker/prefill/job.h"
#include "worker/prefill/prefill_loop.h"
#include "worker/prefill/stage_memory.h"
#include "worker/prefill/trace.h"

namespace runahead {

// Called from the stage's threads; must not block.
class PrefillObserver {
 public:
  virtual ~PrefillObserver() = default;
  // Tail only, before the job is done: queue_s from Start to the job's beginning, prefill_s from there to the token.
  virtual void OnFirstToken(const PrefillJob& job, const Sampled& token, double queue_s, double prefill_s) = 0;
  // Once for each Start. OK: neighbours and decode worker have acknowledged everything; else the first reason. The
  // job's memory is free again.
  virtual void OnDone(const PrefillJob& job, const JobEnd& end, const JobTimes& times) = 0;
};

struct PrefillStageOptions {
  size_t memory_bytes = 0;                   // layer buffers of two jobs (StageMemory adds what interleaved ones take)
  std::shared_ptr<Buffer> memory = nullptr;  // StageMemory::Allocate's for so many bytes; null: Create allocates it
  TraceSink* trace = nullptr;                // outlives the stage
  std::function<void(int64_t)> on_memory = {};  // bytes held by jobs now; any thread, short
  // Of the stage's thread and its stream; null: one of its own.
  std::shared_ptr<ProgressMeter> progress = nullptr;
};

// Thread-safe. One thread steps the loops of at most two jobs that are half done: an ordered one, and an interleaved
// one. Ordered jobs never overtake each other. A job that is to be interleaved, fits the ordered one's InterleaveBudget
// and finds memory free for all its layers overtakes whatever is queued, whenever the ordered one waits: it waits for
// nothing but the device, so the order in which workers wait for each other stays as it was. Until its pass is over the
// ordered one is not stepped. A job whose pass is over waits for its acknowledgements beside the next ones.
class PrefillStage {
 public:
  // All references outlive the stage.
  static absl::StatusOr<std::unique_ptr<PrefillStage>> Create(const PrefillStageOptions& options, Device& device,
                                                              std::shared_ptr<const Model> model,
                                                              HandoffSender& handoff, PrefillObserver& observer);
  // Cancels everything and waits for it.
  ~PrefillStage();

  // Queues the job. A job that does not fit is done at once with INVALID_ARGUMENT or RESOURCE_EXHAUSTED.
  void Start(PrefillJob job) RUNAHEAD_EXCLUDES(mu_);
  // Ends the job with `why` (not OK), of which `cause` says whose doing it is; nothing when it is done already or
  // unknown.
  void Cancel(JobId job, const absl::Status& why, JobCause cause = JobCause::kRouter) RUNAHEAD_EXCLUDES(mu_);
  void CancelAll(const absl::Status& why, JobCause cause = JobCause::kRouter) RUNAHEAD_EXCLUDES(mu_);

  // Tokens of the longest prefix that its buffers hold; and of the longest that they hold with X of all of it.
  int64_t max_prefix_tokens() const;
  int64_t max_prefix_tokens_with_x() const;
  int64_t unfinished_jobs() const RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Running;
  using Queue = std::deque<std::shared_ptr<Running>>;
  PrefillStage(const PrefillStageOptions& options, Device& device, std::shared_ptr<const Model> model,
               HandoffSender& handoff, PrefillObserver& observer, std::shared_ptr<Buffer> memory);

  // The stage's thread.
  void Run();
  bool Admit() RUNAHEAD_EXCLUDES(mu_);
  void AdmitInterleaved() RUNAHEAD_REQUIRES(mu_);
  bool FitsInterleaved(const PrefillJob& job) const RUNAHEAD_REQUIRES(mu_);
  bool Grant(Running& running, std::optional<StageMemory::Region> region) RUNAHEAD_REQUIRES(mu_);
  static bool MayGoOn(const Running& running);
  void GoOn(const std::shared_ptr<Running>& running);
  absl::Status Step(Running& running);
  absl::Status Begin(Running& running) RUNAHEAD_EXCLUDES(mu_);
  absl::StatusOr<PrefillWait> NextLayer(Running& running);
  void Await(Running& running, PrefillWait wait);
  static void AccountWait(Running& running, absl::Time now);
  absl::Status ReportFirstToken(Running& running);
  absl::StatusOr<Sampled> SampleFirst(const PrefillJob& job, const Tensor& logits);
  void EndPass(const std::shared_ptr<Running>& running, const absl::Status& computed);
  void Settle(const std::shared_ptr<Running>& running, const absl::Status& computed);

  void Done(const std::shared_ptr<Running>& running, const absl::Status& status) RUNAHEAD_EXCLUDES(mu_);
  void ReportMemory() RUNAHEAD_REQUIRES(mu_);
  static void DropEdges(const PrefillJob& job, HandoffSender& handoff);

  const PrefillStageOptions options_;
  Device& device_;
  const std::shared_ptr<const Model> model_;
  HandoffSender& handoff_;
  PrefillObserver& observer_;
  const std::unique_ptr<Stream> compute_;
  const std::shared_ptr<ProgressMeter> progress_;
  const std::shared_ptr<Bell> bell_;  // rings when something that the thread waits for may be over

  // Of the stage's thread.
  ForwardScratch ordered_scratch_, interleaved_scratch_, shared_scratch_;
  std::unique_ptr<TokenSampler> sampler_;           // of one row; null before the first tail
  std::shared_ptr<Running> ordered_, interleaved_;  // half done; null: none

  mutable Mutex mu_;
  CondVar changed_;
  StageMemory memory_ RUNAHEAD_GUARDED_BY(mu_);
  Queue queue_ RUNAHEAD_GUARDED_BY(mu_);
  absl::flat_hash_map<JobId, std::shared_ptr<Running>> jobs_ RUNAHEAD_GUARDED_BY(mu_);  // not yet done
  int reporting_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // jobs that are done and being reported
  bool stopping_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
