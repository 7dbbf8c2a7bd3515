#include "server/router/fleet.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/base/natural_order.h"

namespace runahead {
namespace {

std::string HostOf(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  return parsed.ok() ? parsed->host : address;
}

}  // namespace

Fleet::Fleet(std::vector<WorkerSpec> workers, int queue_size, RouterMetrics& metrics, Clock& clock, Planner planner)
    : workers_(std::move(workers)),
      queue_size_(queue_size),
      metrics_(metrics),
      clock_(clock),
      planner_(std::move(planner)),
      ejections_(workers_.size(), metrics, clock),
      states_(workers_.size()),
      last_loss_(clock.Now()) {
  MutexLock lock(mu_);
  for (size_t i = 0; i < workers_.size(); ++i) states_[i].address = workers_[i].address;
  FormLine();
  CountWorkers();
  QueueChanged();
}

void Fleet::FormLine() {
  line_.clear();
  ++line_changes_;
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].prefills() && !states_[i].address.empty()) line_.push_back(static_cast<int>(i));
  }
  std::map<int, std::string> hosts;
  for (int index : line_) hosts[index] = HostOf(states_[index].address);
  std::stable_sort(line_.begin(), line_.end(), [&](int a, int b) { return NaturalLess(hosts[a], hosts[b]); });
}

std::vector<int> Fleet::line() const {
  MutexLock lock(mu_);
  return line_;
}

size_t Fleet::line_length() const {
  MutexLock lock(mu_);
  return line_.size();
}

std::string Fleet::address(int index) const {
  MutexLock lock(mu_);
  return states_[index].address;
}

int Fleet::listed() const {
  MutexLock lock(mu_);
  return static_cast<int>(
      std::count_if(states_.begin(), states_.end(), [](const State& state) { return !state.address.empty(); }));
}

void Fleet::SetAddress(int index, std::string address) {
  MutexLock lock(mu_);
  State vacant;
  vacant.address = std::move(address);
  vacant.changes = states_[index].changes + 1;
  states_[index] = std::move(vacant);
  memory_.Lost(index);
  FormLine();
  CountWorkers();
  PlacesChanged();
}

// Forgets the worker's jobs and leases, but not how much it could hold.
void Fleet::Reset(State& state, WorkerState to, std::string note) {
  State fresh;
  fresh.address = state.address;
  fresh.state = to;
  fresh.note = std::move(note);
  fresh.changes = state.changes + 1;
  fresh.max_prefix_tokens = state.max_prefix_tokens;
  fresh.kv_capacity_tokens = state.kv_capacity_tokens;
  fresh.incarnation = state.incarnation;
  fresh.epoch = state.epoch;
  state = std::move(fresh);
}

void Fleet::SetReady(std::shared_ptr<const LiveWorker> worker) {
  MutexLock lock(mu_);
  State& state = states_[worker->index];
  Reset(state, WorkerState::kReady, "ready");
  state.max_prefix_tokens = worker->capabilities.max_prefix_tokens();
  state.kv_capacity_tokens = worker->capabilities.kv_capacity_tokens();
  state.incarnation = worker->capabilities.incarnation();
  state.epoch = worker->capabilities.epoch();
  state.live = std::move(worker);
  CountWorkers();
  Returned();
  MemoryChanged();
}

void Fleet::MemoryChanged() {
  ++memory_changes_;
  WakeForMemory();
}

void Fleet::SetDraining(int index, bool draining, std::string note) {
  MutexLock lock(mu_);
  State& state = states_[index];
  const WorkerState to = draining ? WorkerState::kDraining : WorkerState::kReady;
  if (state.live == nullptr || state.state == to) return;
  state.state = to;
  state.note = std::move(note);
  ++state.changes;
  if (draining) memory_.Lost(index);
  if (draining) last_loss_ = clock_.Now();
  CountWorkers();
  draining ? PlacesChanged() : Returned();
  MemoryChanged();
}

bool Fleet::LivesOn(const LiveWorker& worker) const {
  MutexLock lock(mu_);
  const State& last = states_[worker.index];
  return last.incarnation == worker.capabilities.incarnation() && last.epoch > worker.capabilities.epoch();
}

bool Fleet::Idle(int index) const {
  MutexLock lock(mu_);
  const State& state = states_[index];
  return state.jobs.empty() && state.leases == 0 && state.lease_calls == 0;
}

void Fleet::SetNotReady(int index, WorkerState state, std::string note) {
  MutexLock lock(mu_);
  if (states_[index].live != nullptr) last_loss_ = clock_.Now();
  Reset(states_[index], state, std::move(note));
  memory_.Lost(index);
  CountWorkers();
  PlacesChanged();
}

void Fleet::SetBroken(BrokenPaths broken) {
  MutexLock lock(mu_);
  if (broken == broken_) return;
  const auto includes = [](const auto& all, const auto& some) {
    return std::includes(all.begin(), all.end(), some.begin(), some.end());
  };
  const bool none_fresh = includes(broken_.edges, broken.edges) && includes(broken_.handoffs, broken.handoffs);
  if (!none_fresh) last_loss_ = clock_.Now();
  broken_ = std::move(broken);
  metrics_.SetBrokenPaths(static_cast<int64_t>(broken_.edges.size()), static_cast<int64_t>(broken_.handoffs.size()));
  Returned();
  MemoryChanged();
}

void Fleet::CountSuspected(const std::set<int>& workers) {
  int64_t prefill = 0, decode = 0;
  for (const int index : workers) {
    prefill += workers_[index].prefills();
    decode += workers_[index].decodes();
  }
  metrics_.SetSuspected(WorkerRole::kPrefill, prefill);
  metrics_.SetSuspected(WorkerRole::kDecode, decode);
}

void Fleet::CountWorkers() {
  int counts[kWorkerRoles][kWorkerStates] = {};
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].address.empty()) continue;
    const int state = static_cast<int>(states_[i].state);
    if (workers_[i].prefills()) ++counts[static_cast<int>(WorkerRole::kPrefill)][state];
    if (workers_[i].decodes()) ++counts[static_cast<int>(WorkerRole::kDecode)][state];
  }
  for (int role = 0; role < kWorkerRoles; ++role) {
    for (int state = 0; state < kWorkerStates; ++state) {
      metrics_.SetWorkers(static_cast<WorkerRole>(role), static_cast<WorkerState>(state), counts[role][state]);
    }
  }
}

int Fleet::ready_prefill() const {
  MutexLock lock(mu_);
  int ready = 0;
  for (int index : line_) ready += Ready(states_[index]);
  return ready;
}

int Fleet::ready_decode() const {
  MutexLock lock(mu_);
  return ReadyDecoders();
}

int Fleet::ReadyDecoders() const {
  int ready = 0;
  for (size_t i = 0; i < states_.size(); ++i) ready += workers_[i].decodes() && Ready(states_[i]);
  return ready;
}

v1::Capabilities Fleet::capabilities() const {
  MutexLock lock(mu_);
  for (const State& state : states_) {
    if (state.live != nullptr) return state.live->capabilities;
  }
  return {};
}

std::vector<std::string> Fleet::refusals() const {
  MutexLock lock(mu_);
  std::vector<std::string> refusals;
  for (const State& state : states_) {
    if (state.state == WorkerState::kRefused) refusals.push_back(state.note);
  }
  return refusals;
}

std::set<std::string> Fleet::builds() const {
  MutexLock lock(mu_);
  std::set<std::string> builds;
  for (const State& state : states_) {
    if (state.live != nullptr) builds.insert(state.live->capabilities.build());
  }
  return builds;
}

std::vector<v1::LaneProfile> Fleet::lane_profiles() const {
  MutexLock lock(mu_);
  std::vector<v1::LaneProfile> profiles;
  for (const State& state : states_) {
    if (state.live == nullptr || !state.live->capabilities.has_lane_profile()) continue;
    profiles.push_back(state.live->capabilities.lane_profile());
    profiles.back().set_worker(state.live->capabilities.name());
  }
  return profiles;
}

// Whether the prefill worker can hand off to at least one of so many ready decode workers; true where none is ready.
bool Fleet::ReachesDecode(int prefill, int ready_decoders) const {
  if (broken_.handoffs.empty()) return true;
  int broken = 0;
  for (auto path = broken_.handoffs.lower_bound({prefill, 0}); path != broken_.handoffs.end() && path->first == prefill;
       ++path) {
    broken += workers_[path->second].decodes() && Ready(states_[path->second]);
  }
  return broken == 0 || broken < ready_decoders;
}

// By worker index: whether a chain may have this worker as a member now.
std::vector<bool> Fleet::MayPrefill() const {
  const std::vector<bool> ejected = ejections_.Ejected(WorkerRole::kPrefill);
  const int ready_decoders = ReadyDecoders();
  std::vector<bool> may(states_.size());
  for (int index : line_) {
    may[index] = Ready(states_[index]) && !ejected[index] && ReachesDecode(index, ready_decoders);
  }
  return may;
}

// Leaves `ready` to the caller.
Fleet::Seen Fleet::See(int index) const {
  const State& state = states_[index];
  Seen seen;
  seen.linked_to_next = !broken_.edges.contains(index);
  seen.changes = state.changes;
  seen.max_prefix_tokens = state.max_prefix_tokens;
  seen.outlook = state.jobs.outlook();
  return seen;
}

std::string Fleet::Notes(bool prefill) const {
  std::string notes;
  const int ready_decoders = ReadyDecoders();
  const std::vector<bool> ejected = ejections_.Ejected(prefill ? WorkerRole::kPrefill : WorkerRole::kDecode);
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (prefill ? !workers_[i].prefills() : !workers_[i].decodes()) continue;
    if (states_[i].address.empty()) continue;
    absl::StrAppend(&notes, notes.empty() ? "" : "; ", states_[i].address, ": ",
                    ejected[i] ? "left out for a time, for it fails again and again" : states_[i].note);
    if (!prefill) continue;
    const int index = static_cast<int>(i);
    if (broken_.edges.contains(index)) absl::StrAppend(&notes, ", but its edge to the next is broken");
    if (!ReachesDecode(index, ready_decoders)) absl::StrAppend(&notes, ", but it reaches no decode worker");
  }
  return notes.empty() ? "the worker list has none, or no name of one was found" : notes;
}

// Null when that incarnation is gone: what it held went with it.
Fleet::State* Fleet::Find(const LiveWorker& worker) {
  State& state = states_[worker.index];
  return state.live.get() == &worker ? &state : nullptr;
}

void Fleet::FinishJob(const LiveWorker& worker, uint64_t placement) {
  MutexLock lock(mu_);
  if (State* state = Find(worker)) state->jobs.Finish(placement);
  PlacesChanged();
}

void Fleet::WithdrawJob(const LiveWorker& worker, uint64_t placement) {
  MutexLock lock(mu_);
  if (State* state = Find(worker)) state->jobs.Withdraw(placement);
  PlacesChanged();
}

std::vector<DecodeView> Fleet::DecodeViews(absl::Span<const std::shared_ptr<const LiveWorker>> chain) const {
  const std::vector<bool> ejected = ejections_.Ejected(WorkerRole::kDecode);
  std::vector<DecodeView> views(states_.size());
  for (size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    const bool decodes = workers_[i].decodes();
    views[i].ready = decodes && Ready(state) && !ejected[i];
    for (const auto& member : chain) {
      views[i].ready &= !broken_.handoffs.contains({member->index, static_cast<int>(i)});
    }
    views[i].capacity_tokens = decodes && !state.address.empty() ? state.kv_capacity_tokens : 0;
    views[i].reserved_tokens = state.reserved_tokens + state.unseen_tokens;
    views[i].leases = state.leases;
  }
  return views;
}

absl::StatusOr<std::vector<std::shared_ptr<const LiveWorker>>> Fleet::RankDecode(
    const Ticket& ticket, int64_t tokens, absl::Span<const std::shared_ptr<const LiveWorker>> chain) const {
  MutexLock lock(mu_);
  std::vector<DecodeView> views = DecodeViews(chain);
  memory_.AddKept(ticket.number_, absl::MakeSpan(views));
  const absl::StatusOr<std::vector<size_t>> ranked = RankDecodeWorkers(tokens, views);
  if (absl::IsUnavailable(ranked.status())) {
    return absl::UnavailableError(absl::StrCat(ranked.status().message(), ": ", Notes(false)));
  }
  RUNAHEAD_RETURN_IF_ERROR(ranked.status());
  std::vector<std::shared_ptr<const LiveWorker>> workers;
  for (size_t i : *ranked) workers.push_back(states_[i].live);
  return workers;
}

bool Fleet::LeaseAsked(const LiveWorker& worker) {
  MutexLock lock(mu_);
  State* const state = Find(worker);
  if (state == nullptr || !Ready(*state)) return false;
  ++state->lease_calls;
  return true;
}

void Fleet::LeaseAnswered(const LiveWorker& worker) {
  MutexLock lock(mu_);
  if (State* const state = Find(worker)) --state->lease_calls;
}

void Fleet::LeaseTaken(const LiveWorker& worker, int64_t tokens) {
  MutexLock lock(mu_);
  State* const state = Find(worker);
  if (state == nullptr) return;
  // The worker granted the lease, so at least that much was free.
  const int64_t unseen_at_most = state->kv_capacity_tokens - state->reserved_tokens - tokens;
  state->unseen_tokens = std::max<int64_t>(0, std::min(state->unseen_tokens, unseen_at_most));
  state->reserved_tokens += tokens;
  ++state->leases;
}

void Fleet::LeaseReturned(const LiveWorker& worker, int64_t tokens) {
  MutexLock lock(mu_);
  ++memory_changes_;
  if (State* state = Find(worker)) {
    state->reserved_tokens -= tokens;
    state->unseen_tokens -= state->unseen_tokens / std::max(1, state->leases);  // its share of what was rounded up
    --state->leases;
  }
  WakeForMemory();
}

void Fleet::LeaseRefused(const LiveWorker& worker, int64_t tokens) {
  MutexLock lock(mu_);
  State* const state = Find(worker);
  if (state == nullptr) return;
  const int64_t unseen_at_least = state->kv_capacity_tokens - state->reserved_tokens - tokens + 1;
  state->unseen_tokens = std::max(state->unseen_tokens, unseen_at_least);
}

uint64_t Fleet::memory_changes() const {
  MutexLock lock(mu_);
  return memory_changes_;
}

}  // namespace runahead
