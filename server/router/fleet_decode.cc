// What decode workers have to give: slots in their steps, and KV memory.
#include <algorithm>
#include <optional>
#include <utility>

#include "server/router/fleet.h"

namespace runahead {
namespace {

// The share of the last lease in how long they are held.
constexpr double kNewestLease = 0.1;

DecodeReport ReportOf(const v1::DecodeLoad& load, int64_t block_tokens) {
  DecodeReport report;
  report.slots_used = load.slots_used();
  report.running = load.running();
  report.parked = load.parked();
  report.used_tokens = load.blocks_used() * block_tokens;
  report.growable_tokens = load.blocks_growable() * block_tokens;
  report.step = absl::Nanoseconds(load.step_ns());
  report.remaining.assign(load.remaining_tokens().begin(), load.remaining_tokens().end());
  return report;
}

}  // namespace

std::vector<DecodeView> Fleet::DecodeViews(absl::Span<const std::shared_ptr<const LiveWorker>> chain) const {
  MutexLock lock(mu_);
  const std::vector<bool> ejected = ejections_.Ejected(WorkerRole::kDecode);
  const absl::Time now = clock_.Now();
  std::vector<DecodeView> views(states_.size());
  for (size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    DecodeView& view = views[i];
    const bool decodes = workers_[i].decodes();
    view.ready = decodes && Ready(state) && !ejected[i];
    for (const auto& member : chain) view.ready &= !broken_.handoffs.contains({member->index, static_cast<int>(i)});
    view.capacity_tokens = decodes && !state.address.empty() ? state.kv_capacity_tokens : 0;
    if (!view.ready) continue;
    view.reserved_tokens = state.load.reserved_tokens(view.capacity_tokens);
    view.leases = static_cast<int>(state.load.leases());
    view.slots = state.live->capabilities.max_batch();
    view.taken_slots = state.load.leases() + state.load.asked();
    view.ends_s = state.load.Ends(now);
    view.grows = state.leases_grow;
  }
  return views;
}

std::vector<std::shared_ptr<const LiveWorker>> Fleet::Live(absl::Span<const size_t> seats) const {
  MutexLock lock(mu_);
  std::vector<std::shared_ptr<const LiveWorker>> live;
  for (const size_t index : seats) {
    if (states_[index].live != nullptr) live.push_back(states_[index].live);
  }
  return live;
}

double Fleet::lease_s() const {
  MutexLock lock(mu_);
  return lease_s_;
}

absl::Status Fleet::LeaseAsked(const LiveWorker& worker) {
  MutexLock lock(mu_);
  State* const state = Find(worker);
  if (state == nullptr || !Ready(*state)) {
    return absl::UnavailableError("the decode workers were lost, or began to drain, just now");
  }
  state->load.Asked();
  return absl::OkStatus();
}

void Fleet::LeaseAnswered(const LiveWorker& worker) {
  {
    MutexLock lock(mu_);
    if (State* const state = Find(worker)) state->load.Answered();
  }
  Tell({.decode = true});
}

void Fleet::LeaseTaken(const LiveWorker& worker, int64_t tokens) {
  MutexLock lock(mu_);
  State* const state = Find(worker);
  if (state == nullptr) return;
  state->load.Taken(tokens, state->kv_capacity_tokens, clock_.Now());
  ShowSlots(*state);
}

void Fleet::LeaseReturned(const LiveWorker& worker, int64_t tokens, std::optional<absl::Duration> held) {
  {
    MutexLock lock(mu_);
    if (held) {
      const double held_s = absl::ToDoubleSeconds(*held);
      lease_s_ = lease_s_ == 0 ? held_s : lease_s_ + kNewestLease * (held_s - lease_s_);
    }
    if (State* const state = Find(worker)) {
      state->load.Returned(tokens);
      ShowSlots(*state);
    }
  }
  Tell({.decode = true});
}

void Fleet::LeaseRefused(const LiveWorker& worker, const DecodeNeed& need) {
  MutexLock lock(mu_);
  State* const state = Find(worker);
  if (state != nullptr) state->load.Refused(need.counted(state->leases_grow), state->kv_capacity_tokens);
}

void Fleet::TakeLoad(int index, const v1::DecodeLoad& load, absl::Time asked) {
  {
    MutexLock lock(mu_);
    State& state = states_[index];
    if (state.live == nullptr) return;  // it has not joined yet
    state.leases_grow = load.leases_grow();
    state.load.Reported(ReportOf(load, state.live->capabilities.kv_block_tokens()), asked, clock_.Now());
    ShowSlots(state);
  }
  Tell({.decode = true});
}

void Fleet::ShowSlots(const State& state) const {
  const v1::Capabilities& worker = state.live->capabilities;
  if (worker.max_batch() == kSlotsUntold) return;
  const int64_t taken = state.load.leases(), parked = std::min(taken, state.load.parked());
  const int64_t running = std::min(taken - parked, state.load.running());
  SlotCounts counts = {};
  counts[static_cast<int>(SlotState::kRunning)] = running;
  counts[static_cast<int>(SlotState::kPromised)] = taken - running - parked;
  counts[static_cast<int>(SlotState::kFree)] = std::max<int64_t>(0, worker.max_batch() - taken);
  counts[static_cast<int>(SlotState::kParked)] = parked;
  metrics_.SetSlots(worker.name(), counts);
}

void Fleet::HideSlots(const State& state) const {
  if (state.live != nullptr && state.live->capabilities.max_batch() != kSlotsUntold) {
    metrics_.SetSlots(state.live->capabilities.name(), {});
  }
}

}  // namespace runahead
