// Decides whose turn it is among the requests that wait, and wakes them when workers change.
#include "server/router/fleet_queue.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "scheduler/placement/admission.h"

namespace runahead {

FleetQueue::FleetQueue(Fleet& fleet, int queue_size, RouterMetrics& metrics, Clock& clock, Planner planner)
    : fleet_(fleet), queue_size_(queue_size), metrics_(metrics), clock_(clock), planner_(std::move(planner)) {
  {
    MutexLock lock(mu_);
    QueueChanged();
  }
  fleet_.OnNews([this](const FleetNews& news) { Hear(news); });
}

FleetQueue::~FleetQueue() {
  fleet_.OnNews(nullptr);
}

void FleetQueue::Hear(const FleetNews& news) {
  MutexLock lock(mu_);
  if (news.left.has_value()) {
    kept_.Lost(*news.left);
    WakeForDecode();
  }
  if (news.returned) {
    Returned();
  } else if (news.places) {
    PlacesChanged();
  }
  if (news.refused) Refused();
  if (news.decode) DecodeChanged();
}

FleetQueue::Ticket::Ticket(FleetQueue& queue, Claim claim)
    : queue_(queue), claim_(std::move(claim)), turn_(queue.TurnOf(claim_)) {}
FleetQueue::Ticket::~Ticket() {
  queue_.Leave(*this);
}

Turn FleetQueue::TurnOf(const Claim& claim) {
  MutexLock lock(mu_);
  return order_.Come(claim);
}

void FleetQueue::Leave(const Ticket& ticket) {
  MutexLock lock(mu_);
  if (!ticket.settled_) {
    order_.Left(ticket.turn_);
    GiveBackTaken(ticket);
  }
  if (waiting_.erase(ticket.turn_) > 0) PlacesChanged();  // it had a turn to come, by AwaitReturn
  if (for_beginning_.erase(ticket.turn_) > 0) ShowQueue();
  if (kept_.Leave(ticket.turn_)) DecodeChanged();
}

void FleetQueue::Settled(const Ticket& ticket) {
  MutexLock lock(mu_);
  if (!std::exchange(ticket.settled_, true)) order_.Served(ticket.turn_, ticket.had_.value_or(ticket.turn_));
  if (kept_.Leave(ticket.turn_)) DecodeChanged();
}

// Once for a ticket. Requests of low priority leave an eighth to others, of their own tenant, too.
absl::Status FleetQueue::Admit(const Ticket& ticket) const {
  if (ticket.settled_ || ticket.admitted_) return absl::OkStatus();
  const bool low = ticket.claim_.priority == RequestPriority::kLow;
  const auto of_tenant = [&](const std::map<Turn, Waiter>& waiters) {
    return std::count_if(waiters.begin(), waiters.end(), [&](const auto& waiter) {
      const Claim& claim = waiter.second.ticket->claim_;
      return claim.tenant == ticket.claim_.tenant && claim.priority <= ticket.claim_.priority;
    });
  };
  RUNAHEAD_RETURN_IF_ERROR(AdmitToQueue(Waiting(), queue_size_));
  if (low) RUNAHEAD_RETURN_IF_ERROR(AdmitLow(Waiting(), queue_size_));
  if (order_.tenants() >= 2 && Waiting() >= MostOfOneKind(queue_size_)) {
    RUNAHEAD_RETURN_IF_ERROR(AdmitTenant(static_cast<int>(of_tenant(waiting_) + of_tenant(for_decode_) +
                                                          of_tenant(for_return_) + of_tenant(for_beginning_)),
                                         queue_size_));
  }
  ticket.admitted_ = true;
  return absl::OkStatus();
}

int FleetQueue::WaitingForWorkers() const {
  return static_cast<int>(waiting_.size() + for_decode_.size() + for_return_.size()) + waiting_elsewhere_;
}

int FleetQueue::Waiting() const {
  return WaitingForWorkers() + static_cast<int>(for_beginning_.size());
}

// Who begins reckons with how many wait behind it.
void FleetQueue::QueueChanged() {
  ShowQueue();
  WakeNext();
}

void FleetQueue::ShowQueue() const {
  QueueCounts counts = {};
  counts[static_cast<int>(QueueCause::kSession)] = waiting_elsewhere_;
  counts[static_cast<int>(QueueCause::kPlace)] = static_cast<int64_t>(waiting_.size());
  counts[static_cast<int>(QueueCause::kWorker)] = static_cast<int64_t>(for_return_.size());
  counts[static_cast<int>(QueueCause::kBeginning)] = static_cast<int64_t>(for_beginning_.size());
  for (const auto& [turn, waiter] : for_decode_) ++counts[static_cast<int>(waiter.cause)];
  int64_t low = 0;
  for (const auto* waiters : {&waiting_, &for_decode_, &for_return_, &for_beginning_}) {
    const auto first_low = waiters->lower_bound({RequestPriority::kLow, 0, 0});
    low += std::distance(first_low, waiters->end());
  }
  metrics_.SetQueue(counts, low);
}

void FleetQueue::Waited(const Waiter& waiter) const {
  metrics_.ObserveQueue(waiter.cause, clock_.Now() - waiter.since);
}

absl::StatusOr<absl::Time> FleetQueue::EnterQueue() {
  MutexLock lock(mu_);
  RUNAHEAD_RETURN_IF_ERROR(AdmitToQueue(Waiting(), queue_size_));
  ++waiting_elsewhere_;
  QueueChanged();
  return clock_.Now();
}

void FleetQueue::LeaveQueue(absl::Time since) {
  MutexLock lock(mu_);
  --waiting_elsewhere_;
  metrics_.ObserveQueue(QueueCause::kSession, clock_.Now() - since);
  QueueChanged();
}

absl::Status FleetQueue::EnterForBeginning(const Ticket& ticket) {
  MutexLock lock(mu_);
  RUNAHEAD_RETURN_IF_ERROR(AdmitToQueue(Waiting(), queue_size_));  // also one that was admitted before
  RUNAHEAD_RETURN_IF_ERROR(Admit(ticket));
  Waiter waiter{&ticket, clock_.Now()};
  waiter.cause = QueueCause::kBeginning;
  for_beginning_.emplace(ticket.turn_, waiter);
  ShowQueue();
  return absl::OkStatus();
}

void FleetQueue::LeaveForBeginning(const Ticket& ticket) {
  MutexLock lock(mu_);
  const auto found = for_beginning_.find(ticket.turn_);
  if (found == for_beginning_.end()) return;
  Waited(found->second);
  for_beginning_.erase(found);
  ShowQueue();
}

void FleetQueue::GiveTurn(Waiter& waiter) {
  waiter.turn = true;
  waiter.ticket->wake_.Notify();
}

void FleetQueue::PlacesChanged() {
  ++changes_;
  WakeNext();
}

// Those that waited for it wait for a place again, before any that comes only now.
void FleetQueue::Returned() {
  ++returns_;
  const absl::Time now = clock_.Now();
  for (auto& [turn, waiter] : for_return_) {
    Waited(waiter);
    waiter.since = now;
    waiter.cause = QueueCause::kPlace;
    waiting_.emplace(turn, waiter);
    ++joins_;
    waiter.ticket->wake_.Notify();
  }
  for_return_.clear();
  PlacesChanged();
}

// Those that wait for it may wait in vain.
void FleetQueue::Refused() {
  for (const auto& [turn, waiter] : for_return_) waiter.ticket->wake_.Notify();
}

uint64_t FleetQueue::returns() const {
  MutexLock lock(mu_);
  return returns_;
}

}  // namespace runahead
