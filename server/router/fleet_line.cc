// The line as plans see it, and the places that jobs have on it.
#include <algorithm>
#include <utility>

#include "server/router/fleet.h"

namespace runahead {

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
FleetLine::Worker Fleet::See(int index) const {
  const State& state = states_[index];
  FleetLine::Worker seen;
  seen.linked_to_next = !broken_.edges.contains(index);
  seen.changes = state.changes;
  seen.max_prefix_tokens = state.max_prefix_tokens;
  seen.outlook = state.jobs.outlook();
  return seen;
}

FleetLine Fleet::Line(const std::set<int>& avoided) const {
  MutexLock lock(mu_);
  const std::vector<bool> may = MayPrefill();
  FleetLine line;
  line.changes = line_changes_;
  line.workers.reserve(line_.size());
  for (const int index : line_) {
    line.workers.push_back(See(index));
    line.workers.back().ready = may[index] && !avoided.contains(index);
  }
  return line;
}

double Fleet::OvertakingRoomS() const {
  MutexLock lock(mu_);
  double room_s = 0;
  const std::vector<bool> may = MayPrefill();
  for (int index : line_) {
    if (!may[index]) continue;
    const PlacedJobs::Outlook& outlook = states_[index].jobs.outlook();
    room_s = std::max({room_s, outlook.interleave.left_s(), outlook.overtake.left_s()});
  }
  return room_s;
}

// Workers come and go, also on the line, and end what they compute.
bool Fleet::StillAsSeen(const ChainPlan& plan, const PlacedJob& job, const FleetLine& seen) const {
  if (line_changes_ != seen.changes) return false;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    const bool tail = i + 1 == plan.parts.size();
    const FleetLine::Worker now = See(line_[plan.first + i]);
    if (now.changes != seen.workers[plan.first + i].changes) return false;
    if (!tail && !now.linked_to_next) return false;
    const bool borne = now.outlook.interleave.Fits(job.expected_s) || now.outlook.overtake.Fits(job.expected_s);
    if (plan.overtakes && !borne) return false;
  }
  return true;
}

std::optional<Placement> Fleet::Place(const ChainPlan& plan, PlacedJob job, const FleetLine& seen) {
  MutexLock lock(mu_);
  if (!StillAsSeen(plan, job, seen)) return std::nullopt;
  Placement placement{next_placement_++, plan, {}, absl::ZeroDuration(), job.expected_s, job.allowance};
  job.placement = placement.number;
  job.overtakes = plan.overtakes;
  job.alone = plan.parts.size() == 1 && plan.known_tokens == 0;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    State& state = states_[line_[plan.first + i]];
    job.layer = job.computing / std::max<int64_t>(1, state.live->capabilities.layers());
    placement.overtaken += state.jobs.Add(job);
    placement.chain.push_back(state.live);
  }
  return placement;
}

void Fleet::FinishJob(const LiveWorker& worker, uint64_t placement) {
  {
    MutexLock lock(mu_);
    if (State* state = Find(worker)) state->jobs.Finish(placement);
  }
  Tell({.places = true});
}

void Fleet::WithdrawJob(const LiveWorker& worker, uint64_t placement) {
  {
    MutexLock lock(mu_);
    if (State* state = Find(worker)) state->jobs.Withdraw(placement);
  }
  Tell({.places = true});
}

}  // namespace runahead
