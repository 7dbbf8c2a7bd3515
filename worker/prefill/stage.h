// One worker's place in the prefill line: runs jobs one after the other, in the order of their Starts; but short ones
// that follow each other go together, and one that may overtake goes before those that bear it, also while a longer one
// is half done.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "kernels/base/device.h"
#include "kernels/base/mutex.h"
#include "scheduler/placement/overtaking.h"
#include "server/base/bell.h"
#include "server/base/progress_meter.h"
#include "worker/model/model.h"
#include "worker/model/prompt_scorer.h"
#include "worker/model/token_sampler.h"
#include "worker/prefill/job.h"
#include "worker/prefill/prefill_loop.h"
#include "worker/prefill/stage_memory.h"
#include "worker/prefill/trace.h"

namespace runahead {

// What a layer of `tokens` own tokens, which attend to up to `held`, takes, in rows of a model's matrices: with the row
// of a position's attention counted as a thousandth, about what models of 1 to 8 billion weights have. For meters.
double LayerWork(int64_t tokens, int64_t held);

// Called from the stage's threads; must not block.
class PrefillObserver {
 public:
  virtual ~PrefillObserver() = default;
  // Tail only, before the job is done: queue_s from Start to the job's beginning, prefill_s from there to the token.
  virtual void OnFirstToken(const PrefillJob& job, const Sampled& token, double queue_s, double prefill_s) = 0;
  // Only of a job with prompt_logprobs: what tokens [index, index + scores.size()) of the prompt were given, each one
  // first and then the likeliest others. In their order, and before the job is done; behind OnFirstToken.
  virtual void OnPromptScores(const PrefillJob& job, int64_t index, const std::vector<TokenLogprobPairs>& scores) = 0;
  // Once for each Start. OK: neighbours and decode worker have acknowledged everything; else the first reason. The
  // job's memory is free again.
  virtual void OnDone(const PrefillJob& job, const JobEnd& end, const JobTimes& times) = 0;
};

struct PrefillStageOptions {
  size_t memory_bytes = 0;                   // layer buffers of two jobs (StageMemory adds what interleaved ones take)
  std::shared_ptr<Buffer> memory = nullptr;  // StageMemory::Allocate's for so many bytes; null: Create allocates it
  TraceSink* trace = nullptr;                // outlives the stage
  std::function<void(int64_t)> on_memory = {};  // bytes held by jobs now; any thread, short
  std::function<void(int64_t)> on_pass = {};    // a pass begins with so many prompts; the stage's thread, short
  // Of the stage's thread and its stream; null: one of its own.
  std::shared_ptr<ProgressMeter> progress = nullptr;
  // Compiles the forms that jobs ask for; null: a tail with such a job refuses it with UNIMPLEMENTED.
  std::shared_ptr<GrammarSource> grammars = nullptr;
};

// Thread-safe. One thread steps the loops of at most two passes that are half done: an ordered one, and an interleaved
// one. When an ordered pass begins, short jobs of one part that stand right behind its own (MayShare) go with it, up to
// kRowsTogether rows, as far as memory holds all layers of all of them: so a pass of several waits for nothing but the
// device. One of them that is cancelled, late, or not taken by its decode worker leaves the pass, and the others go on.
//
// Who overtakes whom is said by overtaking.h: jobs of one worker that the router lets overtake, the shortest first, as
// far as all bear it that they go before. Such a job waits for no other worker, so the order in which workers wait for
// each other stays as it was. When the ordered pass is over, it may be the next, whatever memory it takes. Where it
// finds memory free for all its layers, and takes no longer than the ordered pass still does, it is interleaved
// whenever that one waits, also for memory, with others such that may share its pass: then it waits for nothing but the
// device, and until its pass is over the ordered one is not stepped. All others keep the order of their Starts. A job
// whose pass is over waits for its acknowledgements beside the next ones.
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
  int64_t vocab() const { return model_->config().vocab; }
  RowForm kv_form() const { return FormOf(model_->kv_dtype()); }  // of rows of KV

 private:
  struct Running;
  struct Pass;
  using Queue = std::deque<std::shared_ptr<Running>>;
  // Given back with the last copy, without mu_.
  using Memory = std::shared_ptr<const StageMemory::Region>;
  PrefillStage(const PrefillStageOptions& options, Device& device, std::shared_ptr<const Model> model,
               HandoffSender& handoff, PrefillObserver& observer, std::shared_ptr<Buffer> memory);

  // The stage's thread.
  void Run();
  bool Admit() RUNAHEAD_EXCLUDES(mu_);
  size_t WhoIsOrdered() const RUNAHEAD_REQUIRES(mu_);
  void AdmitInterleaved() RUNAHEAD_REQUIRES(mu_);
  std::shared_ptr<Running> TakeFromQueue(size_t index) RUNAHEAD_REQUIRES(mu_);
  std::optional<size_t> WhoInterleaves(const Pass* with) const RUNAHEAD_REQUIRES(mu_);
  bool FitsInterleaved(const PrefillJob& job) const RUNAHEAD_REQUIRES(mu_);
  void AdmitTogether(Pass& pass) RUNAHEAD_EXCLUDES(mu_);
  bool FitsTogether(const Pass& pass, const PrefillJob& job, size_t bytes) const RUNAHEAD_REQUIRES(mu_);
  bool Grant(Pass& pass, std::optional<StageMemory::Region> region) RUNAHEAD_REQUIRES(mu_);
  void GiveBack(StageMemory::Region region) RUNAHEAD_EXCLUDES(mu_);
  static bool MayGoOn(const Pass& pass);
  void GoOn(Pass& pass);
  void LetStoppedLeave(Pass& pass);
  absl::Status Step(Pass& pass);
  absl::Status Begin(Pass& pass) RUNAHEAD_EXCLUDES(mu_);
  absl::StatusOr<PrefillWait> NextLayer(Pass& pass);
  void Await(Pass& pass, PrefillWait wait);
  static void AccountWait(Pass& pass, absl::Time now);
  void ReportFirstTokens(Pass& pass);
  absl::Status ReportFirstToken(const Pass& pass, const Running& running);
  static Event MissingGrammar(const Pass& pass);
  absl::StatusOr<Sampled> SampleFirst(const Running& running, const Tensor& logits);
  absl::Status ScoreNext(Pass& pass);
  absl::Status EnqueueScores(Pass& pass, const PrefillJob& job);
  void EndPass(Pass& pass);
  void Abandon(const Running& running);
  static void Leave(Pass& pass, Running& running, absl::Time now);
  void Settle(const std::shared_ptr<Running>& running);

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
  std::unique_ptr<TokenSampler> sampler_;        // of one row; null before the first tail
  std::unique_ptr<PromptScorer> scorer_;         // of one pass at a time; null before the first job that is scored
  std::unique_ptr<Pass> ordered_, interleaved_;  // half done; null: none

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
