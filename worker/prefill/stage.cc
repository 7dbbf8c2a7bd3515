#include "worker/prefill/stage.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_name.h"
#include "scheduler/placement/together.h"
#include "worker/prefill/job_memory.h"
#include "worker/prefill/pass_rows.h"
#include "worker/prefill/stage_pass.h"

namespace runahead {

double LayerWork(int64_t tokens, int64_t held) {
  constexpr double kOfAttention = 1e-3;
  return static_cast<double>(tokens) * (1 + kOfAttention * static_cast<double>(held));
}

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
  if (refused.status.ok() && running->job.tail()) {
    auto grammar = WantGrammar(running->job.rules, options_.grammars.get());
    refused.status = grammar.status();
    if (grammar.ok()) running->grammar = *std::move(grammar);
  }
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
    Pass* const next = interleaved_ != nullptr ? interleaved_.get() : ordered_.get();
    if (next != nullptr && MayGoOn(*next)) {
      GoOn(*next);
    } else {
      progress_->Resting();
      bell_->Await(rung, next == nullptr ? absl::InfiniteFuture() : next->deadline());
    }
  }
  progress_->Resting();
}

// Takes from the queue what may begin now. False: the stage is stopping, and nothing is left.
bool PrefillStage::Admit() {
  MutexLock lock(mu_);
  if (ordered_ == nullptr && !queue_.empty()) ordered_ = std::make_unique<Pass>(TakeFromQueue(WhoIsOrdered()));
  if (ordered_ == nullptr) return !stopping_;
  if (ordered_->memory == nullptr) Grant(*ordered_, memory_.TakeHalf());
  if (interleaved_ == nullptr) AdmitInterleaved();
  return true;
}

// The one of a queue that is not empty whose pass is the next ordered one. While no half is free, one that fits between
// layers is to wait for none: the first in turn does that, and the other goes before it.
size_t PrefillStage::WhoIsOrdered() const {
  std::vector<WaitingPrompt> waiting;
  for (const auto& queued : queue_) waiting.push_back(queued->AsWaiting(queued->job.interleave));
  const size_t begins = *WhoBegins(waiting);
  return memory_.half_free() || !FitsInterleaved(queue_[begins]->job) ? begins : 0;
}

// The one of the queue that goes while the ordered one is half done. Behind that one's last step none does: it waits
// for nothing but the device.
void PrefillStage::AdmitInterleaved() {
  if (ordered_->half_done() && ordered_->loop->done()) return;
  std::optional<size_t> found = WhoInterleaves(nullptr);
  if (!found) return;
  auto pass = std::make_unique<Pass>(queue_[*found]);
  if (!Grant(*pass, memory_.TakeInterleaved())) return;
  pass->interleaved = true;
  interleaved_ = std::move(pass);
  ordered_->Overtaken(*TakeFromQueue(*found));
  while ((found = WhoInterleaves(interleaved_.get()))) {
    interleaved_->jobs.push_back(TakeFromQueue(*found));
    ordered_->Overtaken(*interleaved_->jobs.back());
  }
  // What the ordered one has enqueued runs first, so that each one's time is its own.
  Await(*interleaved_, {device_.Record(*compute_), PrefillWait::For::kDevice});
}

// Those before it are overtaken.
std::shared_ptr<PrefillStage::Running> PrefillStage::TakeFromQueue(size_t index) {
  std::shared_ptr<Running> taken = std::move(queue_[index]);
  for (size_t i = 0; i < index; ++i) queue_[i]->allowance.Take(taken->job.expected_s);
  queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(index));
  return taken;
}

// Who of the queue may go while the ordered one is half done: alone, or `with` those of a pass that has not begun.
std::optional<size_t> PrefillStage::WhoInterleaves(const Pass* with) const {
  std::vector<WaitingPrompt> waiting;
  for (const auto& queued : queue_) {
    const PrefillJob& job = queued->job;
    const bool fits = with == nullptr ? FitsInterleaved(job) : FitsTogether(*with, job, memory_.interleaved_bytes());
    waiting.push_back(queued->AsWaiting(job.interleave && fits));
  }
  return WhoOvertakes(waiting, std::min(ordered_->BearsOthersFor(), ordered_->KeepsDeviceFor()));
}

// With a buffer for each layer it waits for nothing but the device. One that used its buffers in turn would wait for
// its hand-off, and the ordered one with it.
bool PrefillStage::FitsInterleaved(const PrefillJob& job) const {
  const size_t layer_bytes = LayerRowsOf(job, *model_, device_).bytes();
  return static_cast<size_t>(model_->config().layers) * layer_bytes <= memory_.interleaved_bytes();
}

// Who waits right behind an ordered pass that is about to begin, and may share it, goes with it. It is decided here,
// and as late as can be: it is nobody else's business, and by now the most have come.
void PrefillStage::AdmitTogether(Pass& pass) {
  MutexLock lock(mu_);
  while (!queue_.empty() && FitsTogether(pass, queue_.front()->job, memory_.half_bytes())) {
    pass.jobs.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
}

// With a buffer for each layer none of them waits for the hand-off of another.
bool PrefillStage::FitsTogether(const Pass& pass, const PrefillJob& job, size_t bytes) const {
  if (!MayShare(pass.jobs[0]->job) || !MayShare(job) || !FitTogether(pass.tokens(), job.tokens())) return false;
  std::vector<const PrefillJob*> jobs;
  for (const auto& running : pass.jobs) jobs.push_back(&running->job);
  jobs.push_back(&job);
  const size_t layer_bytes = PassRowsOf(jobs, *model_, device_).all.bytes();
  return static_cast<size_t>(model_->config().layers) * layer_bytes <= bytes;
}

bool PrefillStage::Grant(Pass& pass, std::optional<StageMemory::Region> region) {
  if (!region.has_value()) return false;
  pass.memory = Memory(new StageMemory::Region(*region), [this](const StageMemory::Region* granted) {
    GiveBack(*granted);
    delete granted;
  });
  ReportMemory();
  return true;
}

void PrefillStage::GiveBack(StageMemory::Region region) {
  MutexLock lock(mu_);
  memory_.GiveBack(region);
  ReportMemory();
  bell_->Ring();
}

void PrefillStage::ReportMemory() {
  if (options_.on_memory) options_.on_memory(memory_.taken_bytes());
}

void PrefillStage::Done(const std::shared_ptr<Running>& running, const absl::Status& status) {
  JobEnd end;  // a cancel that came when all was delivered changes nothing
  if (!status.ok()) end = running->stop.reason().value_or(JobEnd{status, JobCause::kOwn});
  running->memory = nullptr;
  {
    MutexLock lock(mu_);
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
  if (job.prefix != nullptr) job.prefix->Drop();
  if (job.lease.has_value()) handoff.Cancel(*job.lease);
}

}  // namespace runahead
