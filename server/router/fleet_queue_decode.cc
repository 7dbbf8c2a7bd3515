// Requests that want a slot and memory of a decode worker.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "scheduler/placement/admission.h"
#include "server/router/fleet_queue.h"
#include "server/task/co_status.h"

namespace runahead {
namespace {

// One whose turn by the predicted ends of sequences did not come true looks again after so long.
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);

}  // namespace

absl::StatusOr<std::vector<std::shared_ptr<const LiveWorker>>> FleetQueue::RankDecode(
    const Ticket& ticket, const DecodeNeed& need, absl::Span<const std::shared_ptr<const LiveWorker>> chain) const {
  MutexLock lock(mu_);
  std::vector<DecodeView> views = fleet_.DecodeViews(chain);
  kept_.AddKept(ticket.turn_, absl::MakeSpan(views));
  LeaveOut(ticket.avoided_, need, absl::MakeSpan(views));
  const absl::StatusOr<std::vector<size_t>> ranked = RankDecodeWorkers(need, views);
  if (absl::IsUnavailable(ranked.status())) {
    return absl::UnavailableError(absl::StrCat(ranked.status().message(), ": ", fleet_.Notes(WorkerRole::kDecode)));
  }
  RUNAHEAD_RETURN_IF_ERROR(ranked.status());
  return fleet_.Live(*ranked);
}

bool FleetQueue::HasRoomBehind(const Ticket& ticket, const LiveWorker& worker, const DecodeNeed& need,
                               const ComingLease& coming) const {
  MutexLock lock(mu_);
  std::vector<DecodeView> views = fleet_.DecodeViews();
  kept_.AddKept(ticket.turn_, absl::MakeSpan(views));
  LeaveOut(ticket.avoided_, need, absl::MakeSpan(views));
  return runahead::HasRoomBehind(views[worker.index], need, coming);
}

absl::Status FleetQueue::LeaseAsked(const Ticket& ticket, const DecodeNeed& need, const LiveWorker& worker) {
  MutexLock lock(mu_);
  // Others may have asked since it was ranked.
  std::vector<DecodeView> views = fleet_.DecodeViews();
  kept_.AddKept(ticket.turn_, absl::MakeSpan(views));
  if (views[worker.index].slot_s() > need.lead_s) {
    return absl::ResourceExhaustedError("the slots of the decode workers were given to others just now");
  }
  return fleet_.LeaseAsked(worker);
}

void FleetQueue::CountSlots(FirstTokenView& view) const {
  int64_t slots = 0;
  for (const DecodeView& worker : fleet_.DecodeViews()) {
    if (!worker.ready) continue;
    if (worker.slots == kSlotsUntold) return;  // there may be any number
    slots += worker.slots;
    view.free_slots += std::max<int64_t>(0, worker.slots - worker.taken_slots);
    view.ends_s.insert(view.ends_s.end(), worker.ends_s.begin(), worker.ends_s.end());
  }
  if (const double held_s = fleet_.lease_s(); held_s > 0) view.slots_per_s = static_cast<double>(slots) / held_s;
}

uint64_t FleetQueue::decode_changes() const {
  MutexLock lock(mu_);
  return decode_changes_;
}

void FleetQueue::DecodeChanged() {
  ++decode_changes_;
  WakeForDecode();
}

void FleetQueue::WakeForDecode() {
  if (for_decode_.empty()) return;
  for (const Turn& turn : kept_.WhoFits(fleet_.DecodeViews())) {
    const auto found = for_decode_.find(turn);
    if (found != for_decode_.end()) GiveTurn(found->second);
  }
  // The first of each worker's waiters looks for itself, too. It is told that it is the first.
  for (const Turn& turn : kept_.Firsts()) {
    const auto found = for_decode_.find(turn);
    if (found != for_decode_.end()) found->second.ticket->wake_.Notify();
  }
}

Task<absl::Status> FleetQueue::AwaitDecode(const Ticket& ticket, const AfterFull& full, const CancelToken& cancel,
                                           absl::Time deadline) {
  RUNAHEAD_CO_RETURN_IF_ERROR(StandForDecode(ticket, full));
  absl::Status status;
  while (const std::optional<absl::Time> until = LookForDecode(ticket, full, cancel, deadline, status)) {
    co_await ticket.wake_.Until(clock_, *until);
  }
  co_return status;
}

// One that has stood here before, or was placed anew, keeps its turn whatever the queue holds.
absl::Status FleetQueue::StandForDecode(const Ticket& ticket, const AfterFull& full) {
  MutexLock lock(mu_);
  RUNAHEAD_RETURN_IF_ERROR(Admit(ticket));
  kept_.Keep(ticket.turn_, full.need, fleet_.DecodeViews(), ticket.avoided_);
  Waiter waiter{&ticket, clock_.Now()};
  waiter.cause = DecodeCause(ticket, full.need);
  for_decode_.emplace(ticket.turn_, waiter);
  QueueChanged();
  if (decode_changes_ != full.decode_changes) WakeForDecode();  // some came back after it had asked
  return absl::OkStatus();
}

// For a slot, where some worker has the memory.
QueueCause FleetQueue::DecodeCause(const Ticket& ticket, const DecodeNeed& need) const {
  std::vector<DecodeView> views = fleet_.DecodeViews();
  kept_.AddKept(ticket.turn_, absl::MakeSpan(views));
  LeaveOut(ticket.avoided_, need, absl::MakeSpan(views));
  for (const DecodeView& view : views) {
    const bool memory = view.may_hold(need) && view.has_room(need);
    if (memory && view.slot_s() > need.lead_s) return QueueCause::kSlot;
  }
  return QueueCause::kMemory;
}

absl::Time FleetQueue::NextLook(const Waiter& waiter, const AfterFull& full, absl::Time now) const {
  const Turn& turn = waiter.ticket->turn_;
  if (!kept_.First(turn)) return absl::InfiniteFuture();
  const std::vector<DecodeView> views = fleet_.DecodeViews();
  const bool nobody = absl::c_none_of(views, [&](const DecodeView& view) { return view.may_hold(full.need); });
  // Where nobody may have it any more, the next attempt says why.
  if (waiter.cause == QueueCause::kMemory || nobody) return waiter.since + full.retry_after;
  return std::max(now + absl::Seconds(kept_.FitsInS(turn, views)), waiter.since + kLookAgain);
}

std::optional<absl::Time> FleetQueue::LookForDecode(const Ticket& ticket, const AfterFull& full,
                                                    const CancelToken& cancel, absl::Time deadline,
                                                    absl::Status& status) {
  MutexLock lock(mu_);
  status = cancel.status();
  const absl::Time now = clock_.Now();
  const Waiter& waiter = for_decode_.at(ticket.turn_);
  const absl::Time look = waiter.turn ? now : NextLook(waiter, full, now);
  if (status.ok() && look > now) {
    if (now < deadline) return std::min(deadline, look);
    status = absl::DeadlineExceededError("the deadline passed while the request waited for a decode worker");
  }
  Waited(waiter);
  for_decode_.erase(ticket.turn_);
  QueueChanged();
  return std::nullopt;
}

}  // namespace runahead
