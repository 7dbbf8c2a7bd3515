// One worker's place in the prefill line: runs jobs one after the other, in the order of their Starts; but one that is
// to be interleaved goes between two layers of a longer one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "kernels/base/device.h"
#include "kernels/base/mutex.h"
#include "scheduler/placement/interleave.h"
#include "worker/model/model.h"
#include "worker/model/token_sampler.h"
#include "worker/prefill/job.h"
#include "worker/prefill/prefill_port.h"
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
  size_t memory_bytes = 0;  // layer buffers of two jobs: one computes while the other's last transfers end
  std::shared_ptr<Buffer> memory = nullptr;     // AllocateMemory's for so many bytes; null: Create allocates it
  TraceSink* trace = nullptr;                   // outlives the stage
  std::function<void(int64_t)> on_memory = {};  // bytes held by jobs now; any thread, short
};

// Thread-safe. One thread runs the passes; a job whose pass is over waits for its acknowledgements beside the next job.
// Before each layer of a pass, jobs that are to be interleaved, fit its InterleaveBudget and find memory overtake
// whatever is queued: they wait for no other worker's KV, so that the order in which workers wait for each other stays
// as it was.
class PrefillStage {
 public:
  // For stages that follow each other on one device.
  static absl::StatusOr<std::shared_ptr<Buffer>> AllocateMemory(size_t memory_bytes, Device& device);
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

  int64_t max_prefix_tokens() const;
  int64_t unfinished_jobs() const RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Running;
  class InterleavingPort;
  using Queue = std::deque<std::shared_ptr<Running>>;
  PrefillStage(const PrefillStageOptions& options, Device& device, std::shared_ptr<const Model> model,
               HandoffSender& handoff, PrefillObserver& observer, std::shared_ptr<Buffer> memory);
  size_t half_bytes() const { return options_.memory_bytes / 2; }
  void Loop();
  void Run(const std::shared_ptr<Running>& running);
  absl::Status Compute(Running& running);
  Queue::iterator FindInterleaved(const InterleaveBudget& budget) RUNAHEAD_REQUIRES(mu_);
  bool HasInterleaved(const InterleaveBudget& budget) RUNAHEAD_EXCLUDES(mu_);
  std::shared_ptr<Running> TakeInterleaved(const InterleaveBudget& budget) RUNAHEAD_EXCLUDES(mu_);
  absl::StatusOr<Sampled> SampleFirst(const PrefillJob& job, const Tensor& logits);
  void Settle(const std::shared_ptr<Running>& running, const absl::Status& computed);
  void Done(const std::shared_ptr<Running>& running, const absl::Status& status) RUNAHEAD_EXCLUDES(mu_);
  int AwaitMemory() RUNAHEAD_EXCLUDES(mu_);
  int TakeMemory() RUNAHEAD_REQUIRES(mu_);
  void ReportMemory() RUNAHEAD_REQUIRES(mu_);
  static void DropEdges(const PrefillJob& job, HandoffSender& handoff);

  const PrefillStageOptions options_;
  Device& device_;
  const std::shared_ptr<const Model> model_;
  HandoffSender& handoff_;
  PrefillObserver& observer_;
  const std::shared_ptr<Buffer> memory_;  // two halves
  const std::unique_ptr<Stream> compute_;
  ForwardScratch scratch_;                 // of the stage's thread
  ForwardScratch interleaved_scratch_;     // the same, for jobs between two layers of another
  std::unique_ptr<TokenSampler> sampler_;  // the same, of one row; null before the first tail

  mutable Mutex mu_;
  CondVar changed_;
  Queue queue_ RUNAHEAD_GUARDED_BY(mu_);
  absl::flat_hash_map<JobId, std::shared_ptr<Running>> jobs_ RUNAHEAD_GUARDED_BY(mu_);  // not yet done
  bool half_taken_[2] RUNAHEAD_GUARDED_BY(mu_) = {false, false};
  int reporting_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // jobs that are done and being reported
  bool stopping_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
