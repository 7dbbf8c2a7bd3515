#include "server/router/fleet.h"

#include <algorithm>
#include <map>
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

Fleet::Fleet(std::vector<WorkerSpec> workers, RouterMetrics& metrics, Clock& clock)
    : workers_(std::move(workers)),
      metrics_(metrics),
      clock_(clock),
      ejections_(workers_.size(), metrics, clock),
      states_(workers_.size()),
      last_loss_(clock.Now()) {
  MutexLock lock(mu_);
  for (size_t i = 0; i < workers_.size(); ++i) states_[i].address = workers_[i].address;
  FormLine();
  CountWorkers();
}

void Fleet::OnNews(Listener listener) {
  MutexLock lock(mu_);
  listener_ = std::move(listener);
}

void Fleet::Tell(const FleetNews& news) const {
  Listener listener;
  {
    MutexLock lock(mu_);
    listener = listener_;
  }
  if (listener) listener(news);
}

bool Fleet::HasRole(size_t index, WorkerRole role) const {
  return role == WorkerRole::kPrefill ? workers_[index].prefills() : workers_[index].decodes();
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
  {
    MutexLock lock(mu_);
    HideSlots(states_[index]);
    State vacant;
    vacant.address = std::move(address);
    vacant.changes = states_[index].changes + 1;
    states_[index] = std::move(vacant);
    FormLine();
    CountWorkers();
  }
  Tell({.places = true, .left = index});
}

// Forgets the worker's jobs and leases, but not how much it could hold.
void Fleet::Reset(State& state, WorkerState to, std::string note) {
  HideSlots(state);
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
  {
    MutexLock lock(mu_);
    State& state = states_[worker->index];
    Reset(state, WorkerState::kReady, "ready");
    state.max_prefix_tokens = worker->capabilities.max_prefix_tokens();
    state.kv_capacity_tokens = worker->capabilities.kv_capacity_tokens();
    state.incarnation = worker->capabilities.incarnation();
    state.epoch = worker->capabilities.epoch();
    state.load = DecodeLoad(/*reports=*/worker->capabilities.max_batch() != kSlotsUntold);
    state.live = std::move(worker);
    ShowSlots(state);
    CountWorkers();
  }
  Tell({.returned = true, .decode = true});
}

void Fleet::SetDraining(int index, bool draining, std::string note) {
  {
    MutexLock lock(mu_);
    State& state = states_[index];
    const WorkerState to = draining ? WorkerState::kDraining : WorkerState::kReady;
    if (state.live == nullptr || state.state == to) return;
    state.state = to;
    state.note = std::move(note);
    AwayChanged(state, draining);
  }
  FleetNews news{.places = true, .returned = !draining, .decode = true};
  if (draining) news.left = index;
  Tell(news);
}

void Fleet::SetInterrupted(int index, bool interrupted) {
  {
    MutexLock lock(mu_);
    State& state = states_[index];
    if (state.live == nullptr || state.interrupted == interrupted) return;
    state.interrupted = interrupted;
    AwayChanged(state, interrupted);
  }
  Tell({.places = true, .returned = !interrupted, .decode = true});
}

void Fleet::AwayChanged(State& state, bool away) {
  ++state.changes;
  if (away) last_loss_ = clock_.Now();
  CountWorkers();
}

bool Fleet::LivesOn(const LiveWorker& worker) const {
  MutexLock lock(mu_);
  const State& last = states_[worker.index];
  return last.incarnation == worker.capabilities.incarnation() && last.epoch > worker.capabilities.epoch();
}

bool Fleet::Idle(int index) const {
  MutexLock lock(mu_);
  const State& state = states_[index];
  return state.jobs.empty() && state.load.idle();
}

void Fleet::SetNotReady(int index, WorkerState state, std::string note) {
  {
    MutexLock lock(mu_);
    if (states_[index].live != nullptr) last_loss_ = clock_.Now();
    Reset(states_[index], state, std::move(note));
    CountWorkers();
  }
  Tell({.places = true, .refused = state == WorkerState::kRefused, .left = index});
}

absl::Time Fleet::last_loss() const {
  MutexLock lock(mu_);
  return last_loss_;
}

bool Fleet::OnlyRefusedAway(WorkerRole role) const {
  MutexLock lock(mu_);
  if (broken_ != BrokenPaths()) return false;
  const std::vector<bool> ejected = ejections_.Ejected(role);
  bool refused = false;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (!HasRole(i, role) || states_[i].address.empty()) continue;
    if (states_[i].state == WorkerState::kRefused) {
      refused = true;
    } else if (!Ready(states_[i]) || ejected[i]) {
      return false;
    }
  }
  return refused;
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
    const int state = static_cast<int>(states_[i].interrupted ? WorkerState::kInterrupted : states_[i].state);
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

std::string Fleet::Note(int index) const {
  MutexLock lock(mu_);
  return NoteOf(states_[index]);
}

std::string Fleet::Notes(WorkerRole role) const {
  MutexLock lock(mu_);
  std::string notes;
  const int ready_decoders = ReadyDecoders();
  const std::vector<bool> ejected = ejections_.Ejected(role);
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!HasRole(i, role) || states_[i].address.empty()) continue;
    absl::StrAppend(&notes, notes.empty() ? "" : "; ", states_[i].address, ": ",
                    ejected[i] ? "left out for a time, for it fails again and again" : NoteOf(states_[i]));
    if (role == WorkerRole::kDecode) continue;
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

}  // namespace runahead
