#include "server/router/fleet.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "scheduler/placement/admission.h"
#include "server/base/address.h"

namespace runahead {
namespace {

std::string HostOf(const WorkerSpec& worker) {
  const absl::StatusOr<HostPort> address = ParseHostPort(worker.address);
  return address.ok() ? address->host : worker.address;
}

std::vector<int> LineOf(const std::vector<WorkerSpec>& workers) {
  std::vector<int> line;
  for (size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].prefills()) line.push_back(static_cast<int>(i));
  }
  std::stable_sort(line.begin(), line.end(), [&](int a, int b) { return HostOf(workers[a]) < HostOf(workers[b]); });
  return line;
}

// What a prompt takes on workers that have nothing else to do. 0 where the table knows no time.
absl::Duration PredictedTime(int64_t tokens, size_t width, const TtftTable& times) {
  if (times.empty() || !times.knows(static_cast<int>(width))) return absl::ZeroDuration();
  return absl::Seconds(times.Seconds(tokens, static_cast<int>(width)));
}

// Until the segment has nothing else to do.
absl::Duration Backlog(absl::Span<const WorkerView> segment) {
  double backlog_s = 0;
  for (const WorkerView& worker : segment) backlog_s = std::max(backlog_s, worker.backlog_s);
  return absl::Seconds(backlog_s);
}

// What a job is still thought to take that is past its predicted end.
constexpr absl::Duration kAboutToEnd = absl::Milliseconds(1);

}  // namespace

Fleet::Ticket::Ticket(Fleet& fleet) : fleet_(fleet), number_(fleet.NewTicket()) {}
Fleet::Ticket::~Ticket() {
  fleet_.Leave(number_);
}

Fleet::Fleet(std::vector<WorkerSpec> workers, int queue_size, RouterMetrics& metrics, Clock& clock)
    : workers_(std::move(workers)),
      line_(LineOf(workers_)),
      queue_size_(queue_size),
      metrics_(metrics),
      clock_(clock),
      ejections_(workers_.size(), metrics, clock),
      states_(workers_.size()) {
  MutexLock lock(mu_);
  Changed();
}

int64_t Fleet::NewTicket() {
  MutexLock lock(mu_);
  return next_ticket_++;
}

void Fleet::SetReady(std::shared_ptr<const LiveWorker> worker) {
  MutexLock lock(mu_);
  State& state = states_[worker->index];
  state = State{};
  state.live = std::move(worker);
  state.state = WorkerState::kReady;
  state.note = "ready";
  ++memory_epoch_;
  Changed();
}

void Fleet::SetNotReady(int index, WorkerState state, std::string note) {
  MutexLock lock(mu_);
  states_[index] = State{};
  states_[index].state = state;
  states_[index].note = std::move(note);
  Changed();
}

void Fleet::Changed() {
  int counts[kWorkerRoles][kWorkerStates] = {};
  for (size_t i = 0; i < states_.size(); ++i) {
    const int state = static_cast<int>(states_[i].state);
    if (workers_[i].prefills()) ++counts[static_cast<int>(WorkerRole::kPrefill)][state];
    if (workers_[i].decodes()) ++counts[static_cast<int>(WorkerRole::kDecode)][state];
  }
  for (int role = 0; role < kWorkerRoles; ++role) {
    for (int state = 0; state < kWorkerStates; ++state) {
      metrics_.SetWorkers(static_cast<WorkerRole>(role), static_cast<WorkerState>(state), counts[role][state]);
    }
  }
  metrics_.SetQueueDepth(Waiting());
  changed_.NotifyAll();
}

void Fleet::SetBroken(BrokenPaths broken) {
  MutexLock lock(mu_);
  if (broken == broken_) return;
  broken_ = std::move(broken);
  metrics_.SetBrokenPaths(static_cast<int64_t>(broken_.edges.size()), static_cast<int64_t>(broken_.handoffs.size()));
  Changed();
}

bool Fleet::ReachesDecode(int prefill) const {
  bool any = false;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (!workers_[i].decodes() || states_[i].live == nullptr) continue;
    if (!broken_.handoffs.contains({prefill, static_cast<int>(i)})) return true;
    any = true;
  }
  return !any;
}

int Fleet::ready_prefill() const {
  MutexLock lock(mu_);
  int ready = 0;
  for (int index : line_) ready += states_[index].live != nullptr;
  return ready;
}

int Fleet::ready_decode() const {
  MutexLock lock(mu_);
  int ready = 0;
  for (size_t i = 0; i < states_.size(); ++i) ready += workers_[i].decodes() && states_[i].live != nullptr;
  return ready;
}

v1::Capabilities Fleet::capabilities() const {
  MutexLock lock(mu_);
  for (const State& state : states_) {
    if (state.live != nullptr) return state.live->capabilities;
  }
  return {};
}

std::set<std::string> Fleet::builds() const {
  MutexLock lock(mu_);
  std::set<std::string> builds;
  for (const State& state : states_) {
    if (state.live != nullptr) builds.insert(state.live->capabilities.build());
  }
  return builds;
}

int Fleet::Waiting() const {
  return static_cast<int>(waiting_.size()) + waiting_elsewhere_;
}

absl::Status Fleet::EnterQueue() {
  MutexLock lock(mu_);
  RUNAHEAD_RETURN_IF_ERROR(AdmitToQueue(Waiting(), queue_size_));
  ++waiting_elsewhere_;
  Changed();
  return absl::OkStatus();
}

void Fleet::LeaveQueue() {
  MutexLock lock(mu_);
  --waiting_elsewhere_;
  Changed();
}

void Fleet::Leave(int64_t ticket) {
  MutexLock lock(mu_);
  if (waiting_.erase(ticket) > 0) Changed();
}

bool Fleet::MayTry(const std::optional<AfterFull>& after_full, absl::Time now) const {
  return !after_full || memory_epoch_ != after_full->epoch || now >= after_full->retry_at;
}

absl::StatusOr<Placement> Fleet::Acquire(const Ticket& ticket, const ChainRequest& request, const PartitionTable& table,
                                         CancelToken& cancel, absl::Time deadline,
                                         std::optional<AfterFull> after_full) {
  const CancelToken::Subscription wake = cancel.OnCancel([this] {
    MutexLock lock(mu_);
    changed_.NotifyAll();
  });
  MutexLock lock(mu_);
  if (!after_full) arrivals_.Count(clock_.Now());
  absl::StatusOr<Placement> placement = AwaitPlace(ticket, request, table, cancel, deadline, after_full);
  // Those behind may go on, also between the layers of what was just placed.
  if (waiting_.erase(ticket.number_) > 0 || !waiting_.empty()) Changed();
  return placement;
}

absl::StatusOr<Placement> Fleet::AwaitPlace(const Ticket& ticket, const ChainRequest& request,
                                            const PartitionTable& table, const CancelToken& cancel, absl::Time deadline,
                                            const std::optional<AfterFull>& after_full) {
  while (true) {
    RUNAHEAD_RETURN_IF_ERROR(cancel.status());
    const absl::Time now = clock_.Now();
    if (MayTry(after_full, now)) {
      absl::StatusOr<Placement> placement = TryPlan(ticket, request, table);
      if (!absl::IsResourceExhausted(placement.status())) return placement;
    }
    if (now >= deadline) return absl::DeadlineExceededError("the deadline passed while the request waited for workers");
    if (waiting_.contains(ticket.number_)) {
      const bool retry_later = after_full && now < after_full->retry_at;
      clock_.WaitUntil(mu_, changed_, retry_later ? std::min(deadline, after_full->retry_at) : deadline);
      continue;
    }
    // One that had its turn and came back because decode memory was full keeps its place whatever the queue holds.
    if (!after_full) RUNAHEAD_RETURN_IF_ERROR(AdmitToQueue(Waiting(), queue_size_));
    waiting_.emplace(ticket.number_, Waiter{request, after_full.has_value()});
    Changed();
  }
}

WorkerView Fleet::ViewOf(const State& state, absl::Time now) const {
  WorkerView view;
  view.ready = state.live != nullptr;
  if (!view.ready) return view;
  view.max_prefix_tokens = state.live->capabilities.max_part_tokens();
  // A job that takes longer than predicted is about to end.
  const auto until = [&](absl::Time end) { return absl::ToDoubleSeconds(std::max(end - now, kAboutToEnd)); };
  const Job* computed = nullptr;
  bool interleaved = false;
  for (const Job& job : state.jobs) {
    view.backlog_s = std::max(view.backlog_s, until(job.end));
    interleaved |= job.interleaved;
    if (job.interleaved) continue;
    ++view.unfinished_jobs;
    if (computed == nullptr) computed = &job;
  }
  if (view.unfinished_jobs >= kMaxUnfinishedJobs) view.place_s = until(computed->end);
  if (computed != nullptr && !interleaved) {
    view.interleave = computed->interleave;
    view.layer_s = absl::ToDoubleSeconds(computed->layer);
  }
  return view;
}

// Who is not at the head of the queue may go between the layers of what workers compute, but not while the head waits
// for decode memory, which it would take. An older one that might do the same goes first.
absl::StatusOr<ChainPlan> Fleet::Overtake(const Ticket& ticket, const ChainRequest& request,
                                          absl::Span<const WorkerView> line) const {
  if (waiting_.begin()->second.for_memory) return absl::ResourceExhaustedError("an older one waits for memory");
  for (const auto& [number, waiter] : waiting_) {
    if (number >= ticket.number_) break;
    if (PlanInterleaved(waiter.request, line)) return absl::ResourceExhaustedError("an older one goes first");
  }
  std::optional<ChainPlan> plan = PlanInterleaved(request, line);
  if (!plan) return absl::ResourceExhaustedError("others wait already");
  return *std::move(plan);
}

// The first of its jobs that is not interleaved; null when it has none.
Fleet::Job* Fleet::Computed(State& state) {
  for (Job& job : state.jobs) {
    if (!job.interleaved) return &job;
  }
  return nullptr;
}

// An interleaved one keeps all others waiting for as long as it takes.
void Fleet::GiveJob(State& state, Job job) {
  if (job.interleaved) {
    Job& longer = *Computed(state);
    longer.interleave.Take(job.tokens);
    job.longer = longer.placement;
    for (Job& other : state.jobs) other.end += job.computing;
  }
  state.jobs.push_back(std::move(job));
}

absl::StatusOr<Placement> Fleet::TryPlan(const Ticket& ticket, const ChainRequest& request,
                                         const PartitionTable& table) {
  const absl::Time now = clock_.Now();
  std::vector<WorkerView> line;
  const std::vector<bool> ejected = ejections_.Ejected(WorkerRole::kPrefill);
  for (int index : line_) {
    line.push_back(ViewOf(states_[index], now));
    line.back().linked_to_next = !broken_.edges.contains(index);
    line.back().ready &= !ejected[index] && ReachesDecode(index);
  }
  const int behind = Waiting() - (waiting_.contains(ticket.number_) ? 1 : 0);
  const bool oldest = waiting_.empty() || ticket.number_ <= waiting_.begin()->first;
  absl::StatusOr<ChainPlan> plan =
      oldest ? PlanChain(request, table, line, {behind, arrivals_.PerSecond(now)}) : Overtake(ticket, request, line);
  if (absl::IsUnavailable(plan.status())) {
    return absl::UnavailableError(absl::StrCat(plan.status().message(), ": ", Notes(true)));
  }
  RUNAHEAD_RETURN_IF_ERROR(plan.status());
  Placement placement{next_placement_++, *std::move(plan), {}};
  const std::vector<int64_t>& parts = placement.plan.parts;
  const size_t first = placement.plan.first;
  const absl::Duration computing = PredictedTime(request.tokens, parts.size(), table.times());
  Job job{placement.number, placement.plan.interleaved, 0, request.tokens, computing, now + computing, {}, {}};
  job.end += job.interleaved ? absl::Seconds(line[first].layer_s)
                             : Backlog(absl::MakeConstSpan(line).subspan(first, parts.size()));
  for (size_t i = 0; i < parts.size(); ++i) {
    State& state = states_[line_[first + i]];
    job.layer = computing / std::max<int64_t>(1, state.live->capabilities.layers());
    if (!job.interleaved) job.interleave = InterleaveBudget(parts[i]);
    GiveJob(state, job);
    placement.chain.push_back(state.live);
  }
  return placement;
}

std::string Fleet::Notes(bool prefill) const {
  std::string notes;
  const std::vector<bool> ejected = ejections_.Ejected(prefill ? WorkerRole::kPrefill : WorkerRole::kDecode);
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (prefill ? !workers_[i].prefills() : !workers_[i].decodes()) continue;
    absl::StrAppend(&notes, notes.empty() ? "" : "; ", workers_[i].address, ": ",
                    ejected[i] ? "left out for a time, for it fails again and again" : states_[i].note);
    if (!prefill) continue;
    const int index = static_cast<int>(i);
    if (broken_.edges.contains(index)) absl::StrAppend(&notes, ", but its edge to the next is broken");
    if (!ReachesDecode(index)) absl::StrAppend(&notes, ", but it reaches no decode worker");
  }
  return notes.empty() ? "the worker list has none" : notes;
}

// Null when that incarnation is gone: what it held went with it.
Fleet::State* Fleet::Find(const LiveWorker& worker) {
  State& state = states_[worker.index];
  return state.live.get() == &worker ? &state : nullptr;
}

void Fleet::ReleaseSlot(const LiveWorker& worker, uint64_t placement) {
  MutexLock lock(mu_);
  TakeJob(worker, placement);
  Changed();
}

void Fleet::ReturnSlot(const LiveWorker& worker, uint64_t placement) {
  MutexLock lock(mu_);
  const std::optional<Job> job = TakeJob(worker, placement);
  if (job && job->interleaved) {
    State& state = states_[worker.index];
    for (Job& other : state.jobs) other.end -= job->computing;
    Job* const computed = Computed(state);
    if (computed != nullptr && computed->placement == job->longer) computed->interleave.GiveBack(job->tokens);
  }
  Changed();
}

// Nothing when that incarnation is gone.
std::optional<Fleet::Job> Fleet::TakeJob(const LiveWorker& worker, uint64_t placement) {
  State* const state = Find(worker);
  if (state == nullptr) return std::nullopt;
  const auto found = std::find_if(state->jobs.begin(), state->jobs.end(),
                                  [placement](const Job& job) { return job.placement == placement; });
  if (found == state->jobs.end()) return std::nullopt;
  const Job job = *found;
  state->jobs.erase(found);
  return job;
}

absl::StatusOr<std::vector<std::shared_ptr<const LiveWorker>>> Fleet::RankDecode(
    int64_t tokens, absl::Span<const std::shared_ptr<const LiveWorker>> chain) const {
  MutexLock lock(mu_);
  const std::vector<bool> ejected = ejections_.Ejected(WorkerRole::kDecode);
  std::vector<DecodeView> views;
  for (size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    DecodeView view;
    view.ready = workers_[i].decodes() && state.live != nullptr && !ejected[i];
    for (const auto& member : chain) view.ready &= !broken_.handoffs.contains({member->index, static_cast<int>(i)});
    if (view.ready) view.capacity_tokens = state.live->capabilities.kv_capacity_tokens();
    view.reserved_tokens = state.reserved_tokens;
    view.leases = state.leases;
    views.push_back(view);
  }
  const absl::StatusOr<std::vector<size_t>> ranked = RankDecodeWorkers(tokens, views);
  if (absl::IsUnavailable(ranked.status())) {
    return absl::UnavailableError(absl::StrCat(ranked.status().message(), ": ", Notes(false)));
  }
  RUNAHEAD_RETURN_IF_ERROR(ranked.status());
  std::vector<std::shared_ptr<const LiveWorker>> workers;
  for (size_t i : *ranked) workers.push_back(states_[i].live);
  return workers;
}

void Fleet::LeaseTaken(const LiveWorker& worker, int64_t tokens) {
  MutexLock lock(mu_);
  if (State* state = Find(worker)) {
    state->reserved_tokens += tokens;
    ++state->leases;
  }
}

void Fleet::LeaseReturned(const LiveWorker& worker, int64_t tokens) {
  MutexLock lock(mu_);
  ++memory_epoch_;
  if (State* state = Find(worker)) {
    state->reserved_tokens -= tokens;
    --state->leases;
  }
  Changed();
}

uint64_t Fleet::memory_epoch() const {
  MutexLock lock(mu_);
  return memory_epoch_;
}

}  // namespace runahead
