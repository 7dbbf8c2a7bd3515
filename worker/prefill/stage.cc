#include "worker/prefill/stage.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_name.h"
#include "worker/prefill/chain_exchange.h"
#include "worker/prefill/job_memory.h"
#include "worker/prefill/tsp_exchange.h"

namespace runahead {
namespace {

template <typename... Setup>
std::unique_ptr<Exchange> MakeExchange(const PrefillJob& job, Setup&&... setup) {
  if (IsTsp(job.schedule)) return std::make_unique<TspExchange>(job, std::forward<Setup>(setup)...);
  return std::make_unique<ChainExchange>(job, std::forward<Setup>(setup)...);
}

ForwardBatch BatchOf(const PrefillJob& job, KvLayout kv) {
  ForwardBatch batch;
  batch.ids.assign(job.ids.end() - job.tokens(), job.ids.end());
  batch.kv = std::move(kv);
  if (job.tail()) batch.logit_rows = {job.tokens() - 1};
  return batch;
}

// Neighbours that get frames of the job.
std::vector<Edge*> SendsTo(const PrefillJob& job) {
  std::vector<Edge*> edges;
  if (job.successor != nullptr) edges.push_back(job.successor.get());
  if (job.predecessor != nullptr && IsTsp(job.schedule)) edges.push_back(job.predecessor.get());
  return edges;
}

// What a layer of the job takes here, in rows of a model's matrices: with the row of a position's attention counted as
// a thousandth, about what models of 1 to 8 billion weights have.
double WorkOf(const PrefillJob& job) {
  constexpr double kOfAttention = 1e-3;
  const auto own = static_cast<double>(job.tokens());
  return own * (1 + kOfAttention * static_cast<double>(job.held_tokens()));
}

// Whom, or what, the job waits for; empty: nobody but the own device.
std::string WaitsFor(const PrefillJob& job, PrefillWait::For what) {
  if (what == PrefillWait::For::kDevice) return "";
  if (what == PrefillWait::For::kLayerBuffer) return "a layer buffer";
  if (IsTsp(job.schedule)) return "its neighbours";
  return job.predecessor != nullptr ? job.predecessor_name : "";
}

}  // namespace

// A job from Start to Done. All but `job`, `started` and `stop` is the stage's thread's until the pass is over.
struct PrefillStage::Running {
  explicit Running(PrefillJob to_run) : job(std::move(to_run)) {}
  const PrefillJob job;
  const absl::Time started = MonotonicNow();
  const JobStop stop;
  InterleaveBudget budget;  // for others, while it is the ordered one
  bool interleaved = false;
  std::optional<StageMemory::Region> region;  // none while it waits for one
  std::unique_ptr<PrefillLoop> loop;          // null before it began
  absl::Time begun;
  PrefillWait wait;          // what comes next needs this to be over
  absl::Time waiting_from;   // as far as it is not accounted for yet
  double interleaved_s = 0;  // that others took while it was half done
  bool over = false;         // the pass
  JobTimes times;
};

absl::StatusOr<std::unique_ptr<PrefillStage>> PrefillStage::Create(const PrefillStageOptions& options, Device& device,
                                                                   std::shared_ptr<const Model> model,
                                                                   HandoffSender& handoff, PrefillObserver& observer) {
  std::shared_ptr<Buffer> memory = options.memory;
  if (memory == nullptr) {
    RUNAHEAD_ASSIGN_OR_RETURN(memory, StageMemory::Allocate(options.memory_bytes, device));
  }
  return std::unique_ptr<PrefillStage>(
      new PrefillStage(options, device, std::move(model), handoff, observer, std::move(memory)));
}

PrefillStage::PrefillStage(const PrefillStageOptions& options, Device& device, std::shared_ptr<const Model> model,
                           HandoffSender& handoff, PrefillObserver& observer, std::shared_ptr<Buffer> memory)
    : options_(options),
      device_(device),
      model_(std::move(model)),
      handoff_(handoff),
      observer_(observer),
      compute_(device.NewStream("prefill")),
      progress_(options.progress != nullptr ? options.progress : std::make_shared<ProgressMeter>()),
      bell_(std::make_shared<Bell>(progress_)),
      ordered_scratch_(device),
      interleaved_scratch_(device),
      shared_scratch_(device),
      memory_(options.memory_bytes, std::move(memory)),
      thread_([this] { Run(); }) {}

PrefillStage::~PrefillStage() {
  CancelAll(absl::UnavailableError("the worker is stopping"), JobCause::kOwn);
  {
    MutexLock lock(mu_);
    stopping_ = true;
    bell_->Ring();
    while (!jobs_.empty() || reporting_ > 0) changed_.Wait(mu_);
  }
  thread_.join();
}

int64_t PrefillStage::max_prefix_tokens() const {
  return MaxPrefixTokens(options_.memory_bytes / 2, model_->kv_row_bytes());
}

int64_t PrefillStage::max_prefix_tokens_with_x() const {
  return MaxPrefixTokens(options_.memory_bytes / 2, model_->kv_row_bytes() + XRowBytesOf(*model_, device_));
}

int64_t PrefillStage::unfinished_jobs() const {
  MutexLock lock(mu_);
  return static_cast<int64_t>(jobs_.size());
}

void PrefillStage::Start(PrefillJob job) {
  // A job that does not fit is the router's failure: it should not have sent it here.
  JobEnd refused{CheckJob(job, model_->config().context_length, model_->config().vocab), JobCause::kRouter};
  if (refused.status.ok()) {
    refused.status = CheckJobMemory(LayerRowsOf(job, *model_, device_), options_.memory_bytes / 2);
  }
  const auto running = std::make_shared<Running>(std::move(job));
  {
    MutexLock lock(mu_);
    if (refused.status.ok() && stopping_) refused = {absl::UnavailableError("the worker is stopping"), JobCause::kOwn};
    if (refused.status.ok() && !jobs_.emplace(running->job.id, running).second) {
      refused.status = absl::InvalidArgumentError(absl::StrCat("job ", running->job.id, " was started already"));
    }
    if (refused.status.ok()) {
      queue_.push_back(running);
      progress_->SetJob(running->job.id, JobActivity::kQueued);
      running->stop.event().OnFire([bell = bell_](const absl::Status&) { bell->Ring(); });
      bell_->Ring();
      return;
    }
  }
  DropEdges(running->job, handoff_);
  observer_.OnDone(running->job, refused, {});
}

void PrefillStage::Cancel(JobId job, const absl::Status& why, JobCause cause) {
  std::shared_ptr<Running> running;
  {
    MutexLock lock(mu_);
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) return;
    running = found->second;
  }
  running->stop.Fire(cause, why);
  DropEdges(running->job, handoff_);
}

void PrefillStage::CancelAll(const absl::Status& why, JobCause cause) {
  std::vector<JobId> jobs;
  {
    MutexLock lock(mu_);
    for (const auto& [id, running] : jobs_) jobs.push_back(id);
  }
  for (JobId job : jobs) Cancel(job, why, cause);
}

void PrefillStage::Run() {
  NameThread("stage");
  for (;;) {
    progress_->Awake();
    const int64_t rung = bell_->rung();
    if (!Admit()) break;
    const std::shared_ptr<Running> next = interleaved_ != nullptr ? interleaved_ : ordered_;
    if (next != nullptr && MayGoOn(*next)) {
      GoOn(next);
    } else {
      progress_->Resting();
      bell_->Await(rung, next == nullptr ? absl::InfiniteFuture() : next->job.deadline);
    }
  }
  progress_->Resting();
}

// Takes from the queue what may begin now. False: the stage is stopping, and nothing is left.
bool PrefillStage::Admit() {
  MutexLock lock(mu_);
  if (ordered_ == nullptr && !queue_.empty()) {
    ordered_ = std::move(queue_.front());
    ordered_->budget = InterleaveBudget(ordered_->job.tokens());
    queue_.pop_front();
  }
  if (ordered_ == nullptr) return !stopping_;
  if (!ordered_->region.has_value()) Grant(*ordered_, memory_.TakeHalf());
  if (interleaved_ == nullptr) AdmitInterleaved();
  return true;
}

// The first in the queue that may go while the ordered one is half done. Behind that one's last step none does: it
// waits for nothing but the device.
void PrefillStage::AdmitInterleaved() {
  if (ordered_->loop != nullptr && ordered_->loop->done()) return;
  auto found = queue_.begin();
  for (; found != queue_.end(); ++found) {
    const PrefillJob& job = (*found)->job;
    if (job.interleave && ordered_->budget.Fits(job.tokens()) && FitsInterleaved(job)) break;
  }
  if (found == queue_.end() || !Grant(**found, memory_.TakeInterleaved())) return;
  interleaved_ = std::move(*found);
  queue_.erase(found);
  interleaved_->interleaved = true;
  ordered_->budget.Take(interleaved_->job.tokens());
  // What the ordered one has enqueued runs first, so that each one's time is its own.
  Await(*interleaved_, {device_.Record(*compute_), PrefillWait::For::kDevice});
}

// With a buffer for each layer it waits for nothing but the device. One that used its buffers in turn would wait for
// its hand-off, and the ordered one with it.
bool PrefillStage::FitsInterleaved(const PrefillJob& job) const {
  const size_t layer_bytes = LayerRowsOf(job, *model_, device_).bytes();
  return static_cast<size_t>(model_->config().layers) * layer_bytes <= memory_.interleaved_bytes();
}

bool PrefillStage::Grant(Running& running, std::optional<StageMemory::Region> region) {
  running.region = region;
  if (region.has_value()) ReportMemory();
  return region.has_value();
}

void PrefillStage::ReportMemory() {
  if (options_.on_memory) options_.on_memory(memory_.taken_bytes());
}

bool PrefillStage::MayGoOn(const Running& running) {
  if (running.stop.reason().has_value() || MonotonicNow() >= running.job.deadline) return true;
  return running.region.has_value() && running.wait.event.fired();
}

// The job's next step, or its end.
void PrefillStage::GoOn(const std::shared_ptr<Running>& running) {
  if (MonotonicNow() >= running->job.deadline) {
    running->stop.Fire(JobCause::kRouter, absl::DeadlineExceededError("the request's deadline passed during prefill"));
  }
  const auto stopped = running->stop.reason();
  const absl::Status status = stopped.has_value() ? stopped->status : Step(*running);
  if (!status.ok() || running->over) EndPass(running, status);
}

absl::Status PrefillStage::Step(Running& running) {
  RUNAHEAD_RETURN_IF_ERROR(*running.wait.event.status());
  if (running.loop == nullptr) RUNAHEAD_RETURN_IF_ERROR(Begin(running));
  AccountWait(running, MonotonicNow());
  if (running.loop->done()) {
    running.over = true;
    return running.job.tail() ? ReportFirstToken(running) : absl::OkStatus();
  }
  RUNAHEAD_ASSIGN_OR_RETURN(PrefillWait wait, NextLayer(running));
  Await(running, std::move(wait));
  return absl::OkStatus();
}

// From here until the device is done with it, it waits for nobody.
absl::StatusOr<PrefillWait> PrefillStage::NextLayer(Running& running) {
  progress_->SetJob(running.job.id, JobActivity::kComputing);
  progress_->Begin(WorkOf(running.job));
  absl::StatusOr<PrefillWait> wait = running.loop->Step();
  device_.Record(*compute_).OnFire([progress = progress_](const absl::Status&) { progress->End(); });
  return wait;
}

absl::Status PrefillStage::Begin(Running& running) {
  const PrefillJob& job = running.job;
  running.begun = running.waiting_from = MonotonicNow();
  if (running.interleaved && ordered_->loop != nullptr) AccountWait(*ordered_, running.begun);
  if (job.spans != nullptr) job.spans->Add("queue", -1, running.started, running.begun);
  BufferRef memory;
  {
    MutexLock lock(mu_);
    memory = memory_.Of(*running.region);
  }
  RUNAHEAD_ASSIGN_OR_RETURN(LayerRing ring, LayerRing::Create(std::move(memory), model_->config().layers,
                                                              LayerRowsOf(job, *model_, device_)));
  std::unique_ptr<Exchange> exchange =
      MakeExchange(job, *model_, std::move(ring), device_, *compute_, handoff_, running.stop, options_.trace);
  const PassMemory memory_of_pass{running.interleaved ? interleaved_scratch_ : ordered_scratch_, shared_scratch_};
  ForwardBatch batch = BatchOf(job, exchange->Layout());
  running.loop =
      std::make_unique<PrefillLoop>(*model_, device_, *compute_, memory_of_pass, std::move(batch), std::move(exchange));
  return absl::OkStatus();
}

void PrefillStage::Await(Running& running, PrefillWait wait) {
  running.wait = std::move(wait);
  running.waiting_from = MonotonicNow();
  const std::string whom = WaitsFor(running.job, running.wait.what);
  if (!whom.empty()) progress_->SetJob(running.job.id, JobActivity::kWaiting, whom);
  running.wait.event.OnFire([bell = bell_](const absl::Status&) { bell->Ring(); });
}

// The running wait's time until `now`.
void PrefillStage::AccountWait(Running& running, absl::Time now) {
  running.loop->AddWaited(running.wait.what, running.waiting_from, now);
  running.waiting_from = now;
}

absl::Status PrefillStage::ReportFirstToken(Running& running) {
  const PrefillJob& job = running.job;
  progress_->Begin(1);  // the first one may compile kernels, too
  const absl::StatusOr<Sampled> token = SampleFirst(job, running.loop->logits());
  progress_->End();
  RUNAHEAD_RETURN_IF_ERROR(token.status());
  running.loop->exchange().Sampled();
  observer_.OnFirstToken(job, *token, absl::ToDoubleSeconds(running.begun - running.started),
                         absl::ToDoubleSeconds(MonotonicNow() - running.begun));
  return absl::OkStatus();
}

void PrefillStage::EndPass(const std::shared_ptr<Running>& running, const absl::Status& computed) {
  const absl::Time now = MonotonicNow();
  if (running->loop != nullptr) {
    running->times = running->loop->times();
    const double others_s = running->times.wait_s + running->interleaved_s;
    running->times.compute_s = absl::ToDoubleSeconds(now - running->begun) - others_s;
  }
  running->times.interleaved = running->interleaved;
  if (running == ordered_) {
    ordered_ = nullptr;
  } else {
    interleaved_ = nullptr;
    if (running->loop != nullptr && ordered_->loop != nullptr) {
      ordered_->interleaved_s += absl::ToDoubleSeconds(now - running->begun);
      ordered_->waiting_from = now;
    }
  }
  Settle(running, computed);
}

// The pass is over, well or not: what the job still has on links and hand-off is awaited beside the next job.
void PrefillStage::Settle(const std::shared_ptr<Running>& running, const absl::Status& computed) {
  if (!computed.ok()) {
    running->stop.Fire(JobCause::kOwn, computed);
    DropEdges(running->job, handoff_);
    // The stream may still read the ring, and its closures the exchange.
    device_.Record(*compute_).Wait().IgnoreError();
  }
  progress_->SetJob(running->job.id, JobActivity::kDelivering);
  std::vector<Event> pending;
  if (running->loop != nullptr) pending = running->loop->exchange().pending();
  // The device is through with the loop, and whoever ends the job must not give a device's memory back.
  running->loop = nullptr;
  if (computed.ok()) {
    for (Edge* edge : SendsTo(running->job)) {
      pending.push_back(edge->Finish(running->job.id));
      pending.back().OnFire([stop = running->stop](const absl::Status& status) {
        if (!status.ok()) stop.Fire(JobCause::kPeer, status);
      });
    }
  }
  WhenAll(pending).OnFire(
      [this, running, computed](const absl::Status& settled) { Done(running, computed.ok() ? settled : computed); });
}

void PrefillStage::Done(const std::shared_ptr<Running>& running, const absl::Status& status) {
  JobEnd end;  // a cancel that came when all was delivered changes nothing
  if (!status.ok()) end = running->stop.reason().value_or(JobEnd{status, JobCause::kOwn});
  {
    MutexLock lock(mu_);
    if (running->region.has_value()) memory_.GiveBack(*running->region);
    ReportMemory();
    jobs_.erase(running->job.id);
    progress_->EndJob(running->job.id);
    ++reporting_;
    bell_->Ring();
  }
  observer_.OnDone(running->job, end, running->times);
  MutexLock lock(mu_);
  --reporting_;
  changed_.NotifyAll();
}

void PrefillStage::DropEdges(const PrefillJob& job, HandoffSender& handoff) {
  if (job.predecessor != nullptr) job.predecessor->Drop(job.id);
  if (job.successor != nullptr) {
    job.successor->Drop(job.id);
    job.successor->Finish(job.id);
  }
  if (job.lease.has_value()) handoff.Cancel(*job.lease);
}

}  // namespace runahead
