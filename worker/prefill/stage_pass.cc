// One pass of a stage: step by step, and how its jobs leave it.
#include "worker/prefill/stage_pass.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "worker/prefill/chain_exchange.h"
#include "worker/prefill/pass_rows.h"
#include "worker/prefill/tsp_exchange.h"

namespace runahead {
namespace {

template <typename... Setup>
std::unique_ptr<Exchange> MakeExchange(const PrefillJob& job, Setup&&... setup) {
  if (IsTsp(job.schedule)) return std::make_unique<TspExchange>(job, std::forward<Setup>(setup)...);
  return std::make_unique<ChainExchange>(job, std::forward<Setup>(setup)...);
}

// Neighbours that get frames of the job.
std::vector<Edge*> SendsTo(const PrefillJob& job) {
  std::vector<Edge*> edges;
  if (job.successor != nullptr) edges.push_back(job.successor.get());
  if (job.predecessor != nullptr && IsTsp(job.schedule)) edges.push_back(job.predecessor.get());
  return edges;
}

// Whom, or what, the job waits for; empty: nobody but the own device.
std::string WaitsFor(const PrefillJob& job, PrefillWait::For what) {
  if (what == PrefillWait::For::kDevice) return "";
  if (what == PrefillWait::For::kLayerBuffer) return "a layer buffer";
  if (IsTsp(job.schedule)) return "its neighbours";
  return job.predecessor != nullptr ? job.predecessor_name : "";
}

}  // namespace

bool PrefillStage::MayGoOn(const Pass& pass) {
  if (MonotonicNow() >= pass.deadline()) return true;
  const auto stopped = [](const auto& running) { return running->stop.reason().has_value(); };
  if (std::any_of(pass.jobs.begin(), pass.jobs.end(), stopped)) return true;
  return pass.memory != nullptr && pass.wait.event.fired();
}

// The next step of those that nothing has stopped, or the pass's end.
void PrefillStage::GoOn(Pass& pass) {
  const bool may_step = pass.memory != nullptr && pass.wait.event.fired();
  if (may_step && !pass.half_done() && !pass.interleaved) AdmitTogether(pass);
  LetStoppedLeave(pass);
  if (may_step && !pass.over) {
    const absl::Status status = Step(pass);
    for (const auto& running : pass.jobs) running->computed.Update(status);
    pass.over |= !status.ok();
  }
  if (pass.over) EndPass(pass);
}

// When all are stopped, it is the pass's end.
void PrefillStage::LetStoppedLeave(Pass& pass) {
  const absl::Time now = MonotonicNow();
  for (const auto& running : pass.jobs) {
    if (now >= running->job.deadline) {
      running->stop.Fire(JobCause::kRouter,
                         absl::DeadlineExceededError("the request's deadline passed during prefill"));
    }
    if (const auto stopped = running->stop.reason()) running->computed = stopped->status;
  }
  const auto goes_on = [](const auto& running) { return running->computed.ok(); };
  const auto leaving = std::stable_partition(pass.jobs.begin(), pass.jobs.end(), goes_on);
  pass.over = leaving == pass.jobs.begin();
  if (pass.over) return;
  for (auto running = leaving; running != pass.jobs.end(); ++running) {
    Abandon(**running);
    Leave(pass, **running, now);
    Settle(*running);
  }
  pass.jobs.erase(leaving, pass.jobs.end());
}

absl::Status PrefillStage::Step(Pass& pass) {
  RUNAHEAD_RETURN_IF_ERROR(*pass.wait.event.status());
  if (!pass.half_done()) RUNAHEAD_RETURN_IF_ERROR(Begin(pass));
  AccountWait(pass, MonotonicNow());
  if (pass.loop->done()) {
    if (const Event grammar = MissingGrammar(pass); !grammar.fired()) {
      Await(pass, {grammar, PrefillWait::For::kDevice});
      return absl::OkStatus();
    }
    if (!std::exchange(pass.drawn, true)) ReportFirstTokens(pass);
    return ScoreNext(pass);
  }
  RUNAHEAD_ASSIGN_OR_RETURN(PrefillWait wait, NextLayer(pass));
  Await(pass, std::move(wait));
  return absl::OkStatus();
}

// From here until the device is done with it, it waits for nobody.
absl::StatusOr<PrefillWait> PrefillStage::NextLayer(Pass& pass) {
  double work = 0;
  for (const auto& running : pass.jobs) {
    progress_->SetJob(running->job.id, JobActivity::kComputing);
    work += LayerWork(running->job.tokens(), running->job.held_tokens());
  }
  progress_->Begin(work, /*whole=*/pass.loop->attends());
  absl::StatusOr<PrefillWait> wait = pass.loop->Step();
  device_.Record(*compute_).OnFire([progress = progress_](const absl::Status&) { progress->End(); });
  return wait;
}

absl::Status PrefillStage::Begin(Pass& pass) {
  pass.begun = pass.waiting_from = MonotonicNow();
  pass.rows = pass.tokens();
  if (pass.interleaved && ordered_->half_done()) AccountWait(*ordered_, pass.begun);
  std::vector<const PrefillJob*> jobs;
  for (const auto& running : pass.jobs) {
    const PrefillJob& job = running->job;
    if (job.spans != nullptr) job.spans->Add("queue", -1, running->started, pass.begun);
    running->memory = pass.memory;
    running->place = jobs.size();
    jobs.push_back(&job);
  }
  BufferRef memory;
  {
    MutexLock lock(mu_);
    memory = memory_.Of(*pass.memory);
  }
  const PassRows rows = PassRowsOf(jobs, *model_, device_);
  RUNAHEAD_ASSIGN_OR_RETURN(const LayerRing ring,
                            LayerRing::Create(std::move(memory), model_->config().layers, rows.all));
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (const auto& running : pass.jobs) {
    exchanges.push_back(MakeExchange(running->job, *model_, ring.Part(rows.parts[running->place]), device_, *compute_,
                                     handoff_, running->stop, options_.trace));
  }
  ForwardBatch batch = BatchOf(jobs, jobs.size() == 1 ? exchanges[0]->Layout() : SharedLayout(jobs));
  const PassMemory memory_of_pass{pass.interleaved ? interleaved_scratch_ : ordered_scratch_, shared_scratch_};
  pass.loop = std::make_unique<PrefillLoop>(*model_, device_, *compute_, memory_of_pass, std::move(batch),
                                            std::move(exchanges));
  if (options_.on_pass) options_.on_pass(static_cast<int64_t>(jobs.size()));
  return absl::OkStatus();
}

void PrefillStage::Await(Pass& pass, PrefillWait wait) {
  pass.wait = std::move(wait);
  pass.waiting_from = MonotonicNow();
  // Of several none waits for others than the device.
  const PrefillJob& job = pass.jobs[0]->job;
  const std::string whom = WaitsFor(job, pass.wait.what);
  if (!whom.empty()) progress_->SetJob(job.id, JobActivity::kWaiting, whom);
  pass.wait.event.OnFire([bell = bell_](const absl::Status&) { bell->Ring(); });
}

// The running wait's time until `now`.
void PrefillStage::AccountWait(Pass& pass, absl::Time now) {
  pass.loop->AddWaited(pass.wait.what, pass.waiting_from, now);
  pass.waiting_from = now;
}

// Fires once one more grammar is there, or never will be; has fired where no job lacks its grammar.
Event PrefillStage::MissingGrammar(const Pass& pass) {
  for (const auto& running : pass.jobs) {
    if (running->grammar == nullptr || running->grammar->ready().fired()) continue;
    // One without a grammar is that job's failure, not the pass's.
    const EventSource settled;
    running->grammar->ready().OnFire([settled](const absl::Status&) { settled.Fire(absl::OkStatus()); });
    return settled.event();
  }
  return Event();
}

void PrefillStage::ReportFirstTokens(Pass& pass) {
  for (const auto& running : pass.jobs) {
    if (running->job.tail()) running->computed = ReportFirstToken(pass, *running);
  }
}

absl::Status PrefillStage::ReportFirstToken(const Pass& pass, const Running& running) {
  const auto row = static_cast<int64_t>(running.place);  // all jobs of a pass of several are tails
  progress_->Begin(1);                                   // the first one may compile kernels, too
  const absl::StatusOr<Sampled> token = SampleFirst(running, pass.loop->logits().Rows(row, 1));
  progress_->End();
  RUNAHEAD_RETURN_IF_ERROR(token.status());
  pass.loop->exchange(running.place).Sampled();
  observer_.OnFirstToken(running.job, *token, absl::ToDoubleSeconds(pass.begun - running.started),
                         absl::ToDoubleSeconds(MonotonicNow() - pass.begun));
  return absl::OkStatus();
}

// The pass is over, well or not: what its jobs still have on links and hand-off is awaited beside the next ones.
void PrefillStage::EndPass(Pass& pass) {
  const absl::Time now = MonotonicNow();
  const std::unique_ptr<Pass> over = std::move(&pass == ordered_.get() ? ordered_ : interleaved_);
  if (over->interleaved && over->half_done() && ordered_->half_done()) {
    ordered_->interleaved_s += absl::ToDoubleSeconds(now - over->begun);
    ordered_->waiting_from = now;
  }
  bool well = true;
  for (const auto& running : over->jobs) {
    if (running->computed.ok()) continue;
    Abandon(*running);
    well = false;
  }
  // The stream may still read the ring.
  if (!well) device_.Record(*compute_).Wait().IgnoreError();
  for (const auto& running : over->jobs) Leave(*over, *running, now);
  // Whoever ends a job must not give a device's memory back.
  over->loop = nullptr;
  over->memory = nullptr;
  for (const auto& running : over->jobs) Settle(running);
}

void PrefillStage::Abandon(const Running& running) {
  running.stop.Fire(JobCause::kOwn, running.computed);
  DropEdges(running.job, handoff_);
}

// Of a pass's time a job has the share that it has of its rows.
void PrefillStage::Leave(Pass& pass, Running& running, absl::Time now) {
  if (pass.half_done()) {
    running.times = pass.loop->times(running.place);
    const double others_s = running.times.wait_s + pass.interleaved_s;
    const double share = static_cast<double>(running.job.tokens()) / static_cast<double>(pass.rows);
    running.times.compute_s = share * (absl::ToDoubleSeconds(now - pass.begun) - others_s);
    running.pending = pass.loop->exchange(running.place).pending();
    pass.loop->Leave(running.place);
  }
  running.times.interleaved = pass.interleaved;
}

// It has left its pass. What goes on reads and writes its rows no more: a pass that does keeps the memory, too.
void PrefillStage::Settle(const std::shared_ptr<Running>& running) {
  progress_->SetJob(running->job.id, JobActivity::kDelivering);
  std::vector<Event> pending = std::move(running->pending);
  if (running->computed.ok()) {
    for (Edge* edge : SendsTo(running->job)) {
      pending.push_back(edge->Finish(running->job.id));
      pending.back().OnFire([stop = running->stop](const absl::Status& status) {
        if (!status.ok()) stop.Fire(JobCause::kPeer, status);
      });
    }
  }
  WhenAll(pending).OnFire([this, running](const absl::Status& settled) {
    Done(running, running->computed.ok() ? settled : running->computed);
  });
}

}  // namespace runahead
