#include "worker/prefill/stage.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "worker/prefill/chain_port.h"
#include "worker/prefill/tsp_port.h"

namespace runahead {
namespace {

// A size after which what follows is aligned as a device's memory is.
constexpr size_t Aligned(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

template <typename... Setup>
std::unique_ptr<PrefillPort> MakePort(const PrefillJob& job, Setup&&... setup) {
  if (IsTsp(job.schedule)) return std::make_unique<TspPort>(job, std::forward<Setup>(setup)...);
  return std::make_unique<ChainPort>(job, std::forward<Setup>(setup)...);
}

// Neighbours that get frames of the job.
std::vector<Edge*> SendsTo(const PrefillJob& job) {
  std::vector<Edge*> edges;
  if (job.successor != nullptr) edges.push_back(job.successor.get());
  if (job.predecessor != nullptr && IsTsp(job.schedule)) edges.push_back(job.predecessor.get());
  return edges;
}

}  // namespace

// A job from Start to Done.
struct PrefillStage::Running {
  explicit Running(PrefillJob started) : job(std::move(started)) {}
  const PrefillJob job;
  const absl::Time started = MonotonicNow();
  const JobStop stop;
  int half = -1;  // of the stage's memory, once it runs
  bool interleaved = false;
  double interleaved_s = 0;  // that others took between its layers
  std::unique_ptr<PrefillPort> port;
  JobTimes times;
};

// A pass's port, with short prompts before each of its layers: what the layer receives is under way by then.
class PrefillStage::InterleavingPort : public KvPort {
 public:
  InterleavingPort(PrefillStage& stage, Running& running)
      : stage_(stage),
        running_(running),
        budget_(running.interleaved ? InterleaveBudget() : InterleaveBudget(running.job.tokens())) {}

  absl::Status Begin(int64_t layer) override {
    RUNAHEAD_RETURN_IF_ERROR(running_.port->Begin(layer));
    while (stage_.HasInterleaved(budget_)) {
      RUNAHEAD_RETURN_IF_ERROR(running_.port->AwaitEnqueued());
      const absl::Time begin = MonotonicNow();
      const std::shared_ptr<Running> next = stage_.TakeInterleaved(budget_);
      budget_.Take(next->job.tokens());
      stage_.Run(next);
      running_.interleaved_s += absl::ToDoubleSeconds(MonotonicNow() - begin);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<KvSpan>> Own(int64_t layer) override { return running_.port->Own(layer); }
  absl::StatusOr<std::vector<AttentionSequence>> Publish(int64_t layer, Stream& compute) override {
    return running_.port->Publish(layer, compute);
  }

 private:
  PrefillStage& stage_;
  Running& running_;
  InterleaveBudget budget_;
};

absl::StatusOr<std::shared_ptr<Buffer>> PrefillStage::AllocateMemory(size_t memory_bytes, Device& device) {
  return device.Allocate(2 * Aligned(memory_bytes / 2), MemoryKind::kDevice);
}

absl::StatusOr<std::unique_ptr<PrefillStage>> PrefillStage::Create(const PrefillStageOptions& options, Device& device,
                                                                   std::shared_ptr<const Model> model,
                                                                   HandoffSender& handoff, PrefillObserver& observer) {
  std::shared_ptr<Buffer> memory = options.memory;
  if (memory == nullptr) {
    RUNAHEAD_ASSIGN_OR_RETURN(memory, AllocateMemory(options.memory_bytes, device));
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
      memory_(std::move(memory)),
      compute_(device.NewStream("prefill")),
      scratch_(device),
      interleaved_scratch_(device),
      thread_([this] { Loop(); }) {}

PrefillStage::~PrefillStage() {
  CancelAll(absl::UnavailableError("the worker is stopping"), JobCause::kOwn);
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
    while (!jobs_.empty() || reporting_ > 0) changed_.Wait(mu_);
  }
  thread_.join();
}

int64_t PrefillStage::max_prefix_tokens() const {
  return MaxPrefixTokens(half_bytes(), model_->attention_shape().kv_row_bytes());
}

int64_t PrefillStage::unfinished_jobs() const {
  MutexLock lock(mu_);
  return static_cast<int64_t>(jobs_.size());
}

void PrefillStage::Start(PrefillJob job) {
  // A job that does not fit is the router's failure: it should not have sent it here.
  JobEnd refused{CheckJob(job, model_->config().context_length, model_->config().vocab), JobCause::kRouter};
  if (refused.status.ok() && job.held_tokens() > max_prefix_tokens()) {
    refused.status =
        absl::ResourceExhaustedError(absl::StrCat("a prefix of ", job.held_tokens(), " tokens does not fit the ",
                                                  max_prefix_tokens(), " that this worker's prefill_memory holds"));
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
      changed_.NotifyAll();
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

void PrefillStage::Loop() {
  for (;;) {
    std::shared_ptr<Running> running;
    {
      MutexLock lock(mu_);
      while (queue_.empty() && !stopping_) changed_.Wait(mu_);
      if (queue_.empty()) return;
      running = queue_.front();
      queue_.pop_front();
    }
    running->half = AwaitMemory();
    Run(running);
  }
}

// In the queue, the first job that may go before the next layer; its end where there is none, or where both halves of
// the memory are in use.
PrefillStage::Queue::iterator PrefillStage::FindInterleaved(const InterleaveBudget& budget) {
  if (half_taken_[0] && half_taken_[1]) return queue_.end();
  return std::find_if(queue_.begin(), queue_.end(), [&](const auto& running) {
    return running->job.interleave && budget.Fits(running->job.tokens());
  });
}

bool PrefillStage::HasInterleaved(const InterleaveBudget& budget) {
  MutexLock lock(mu_);
  return FindInterleaved(budget) != queue_.end();
}

// Only the stage's thread takes from the queue and takes memory: what it has found is there.
std::shared_ptr<PrefillStage::Running> PrefillStage::TakeInterleaved(const InterleaveBudget& budget) {
  MutexLock lock(mu_);
  const auto found = FindInterleaved(budget);
  RUNAHEAD_CHECK(found != queue_.end());
  std::shared_ptr<Running> running = *found;
  queue_.erase(found);
  running->interleaved = true;
  running->half = TakeMemory();
  return running;
}

// The next job waits here until one of the two halves is free: what it waits for are jobs that began before.
int PrefillStage::AwaitMemory() {
  MutexLock lock(mu_);
  while (half_taken_[0] && half_taken_[1]) changed_.Wait(mu_);
  return TakeMemory();
}

int PrefillStage::TakeMemory() {
  const int half = half_taken_[0] ? 1 : 0;
  half_taken_[half] = true;
  ReportMemory();
  return half;
}

void PrefillStage::ReportMemory() {
  if (!options_.on_memory) return;
  options_.on_memory((half_taken_[0] + half_taken_[1]) * static_cast<int64_t>(half_bytes()));
}

void PrefillStage::Run(const std::shared_ptr<Running>& running) {
  const absl::Time begin = MonotonicNow();
  const absl::Status computed = Compute(*running);
  if (running->port != nullptr) running->times = running->port->times();
  const double others_s = running->times.wait_s + running->interleaved_s;
  running->times.compute_s = absl::ToDoubleSeconds(MonotonicNow() - begin) - others_s;
  running->times.interleaved = running->interleaved;
  Settle(running, computed);
}

absl::Status PrefillStage::Compute(Running& running) {
  const PrefillJob& job = running.job;
  const absl::Time begin = MonotonicNow();
  if (const auto stopped = running.stop.reason(); stopped.has_value()) return stopped->status;
  const BufferRef half = BufferRef::Whole(memory_).Slice(running.half * Aligned(half_bytes()), half_bytes());
  RUNAHEAD_ASSIGN_OR_RETURN(LayerRing ring, LayerRing::Create(half, model_->config().layers, job.held_tokens(),
                                                              model_->attention_shape().kv_row_bytes()));
  running.port = MakePort(job, model_->attention_shape(), std::move(ring), device_, *compute_, handoff_, running.stop,
                          options_.trace);

  ForwardBatch batch;
  batch.ids.assign(job.ids.end() - job.tokens(), job.ids.end());
  for (int64_t position = job.begin(); position < job.end(); ++position) {
    batch.positions.push_back(static_cast<int32_t>(position));
  }
  if (job.tail()) batch.logit_rows = {job.tokens() - 1};
  ForwardScratch& scratch = running.interleaved ? interleaved_scratch_ : scratch_;
  InterleavingPort port(*this, running);
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor logits, model_->Forward(*compute_, scratch, batch, port));
  RUNAHEAD_RETURN_IF_ERROR(running.port->FinishPass());
  if (!job.tail()) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(const Sampled token, SampleFirst(job, logits));
  if (options_.trace != nullptr) options_.trace->Add(job.id, model_->config().layers, TracePoint::kFirstToken);
  observer_.OnFirstToken(job, token, absl::ToDoubleSeconds(begin - running.started),
                         absl::ToDoubleSeconds(MonotonicNow() - begin));
  return absl::OkStatus();
}

absl::StatusOr<Sampled> PrefillStage::SampleFirst(const PrefillJob& job, const Tensor& logits) {
  if (sampler_ == nullptr) {
    RUNAHEAD_ASSIGN_OR_RETURN(sampler_, TokenSampler::Create(device_, 1, logits.cols));
  }
  const PenaltyCounts counts(job.sampling, job.ids);
  RUNAHEAD_ASSIGN_OR_RETURN(const TokenSampler::CountsRow row,
                            sampler_->TakeCountsRow(*compute_, job.sampling, counts));
  const auto position = static_cast<int64_t>(job.ids.size());
  const absl::Status enqueued = sampler_->Enqueue(*compute_, logits, {{job.sampling, position, counts, row}});
  // Also where that failed: the row must not be given back before the stream is done with it.
  const absl::Status done = device_.Record(*compute_).Wait();
  RUNAHEAD_RETURN_IF_ERROR(enqueued);
  RUNAHEAD_RETURN_IF_ERROR(done);
  return sampler_->Token(0);
}

// The pass is over, well or not: what the job still has on links and hand-off is awaited beside the next job.
void PrefillStage::Settle(const std::shared_ptr<Running>& running, const absl::Status& computed) {
  if (!computed.ok()) {
    running->stop.Fire(JobCause::kOwn, computed);
    DropEdges(running->job, handoff_);
    // The stream may still read the ring, and its closures the port.
    device_.Record(*compute_).Wait().IgnoreError();
  }
  std::vector<Event> pending;
  if (running->port != nullptr) pending = running->port->pending();
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
    half_taken_[running->half] = false;
    ReportMemory();
    jobs_.erase(running->job.id);
    ++reporting_;
    changed_.NotifyAll();
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
