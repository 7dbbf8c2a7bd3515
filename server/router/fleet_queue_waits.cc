// Requests that wait: for a place, for decode memory, for workers to come back. Each stands somewhere, and looks
// whether it is decided whenever it is woken.
#include <algorithm>
#include <utility>

#include "scheduler/partition/rest_of_prompt.h"
#include "scheduler/placement/admission.h"
#include "scheduler/placement/together.h"
#include "server/router/fleet_queue.h"
#include "server/task/co_status.h"

namespace runahead {
namespace {

absl::Status DeadlinePassed() {
  return absl::DeadlineExceededError("the deadline passed while the request waited for workers");
}

}  // namespace

Task<absl::StatusOr<Placement>> FleetQueue::Acquire(const Ticket& ticket, const ChainRequest& request,
                                                    const PartitionTable& table, CancelToken& cancel,
                                                    absl::Time deadline, std::optional<AfterFull> after_full) {
  const CancelToken::Subscription on_cancel = cancel.OnCancel([&ticket] { ticket.wake_.Notify(); });
  absl::StatusOr<Placement> placement = co_await AwaitPlace(ticket, request, table, cancel, deadline, after_full);
  Acquired(ticket, placement.ok());
  co_return placement;
}

void FleetQueue::Acquired(const Ticket& ticket, bool placed) {
  MutexLock lock(mu_);
  const auto found = waiting_.find(ticket.turn_);
  const bool waited = found != waiting_.end();
  if (waited) {
    Waited(found->second);
    waiting_.erase(found);
    ShowQueue();
  }
  if (waited || placed) PlacesChanged();  // those behind, also between the layers of what was just placed
}

Task<absl::StatusOr<Placement>> FleetQueue::AwaitPlace(const Ticket& ticket, const ChainRequest& request,
                                                       const PartitionTable& table, const CancelToken& cancel,
                                                       absl::Time deadline,
                                                       const std::optional<AfterFull>& after_full) {
  if (after_full) {
    RUNAHEAD_CO_RETURN_IF_ERROR(co_await AwaitDecode(ticket, *after_full, cancel, deadline));
  } else {
    RUNAHEAD_CO_RETURN_IF_ERROR(Arrive(ticket, cancel));
  }
  while (true) {
    Seen seen;
    const ChainRequest timed = Timed(ticket, request, table);
    absl::StatusOr<Placement> placement = TryPlan(ticket, timed, table, seen);
    if (!absl::IsResourceExhausted(placement.status())) co_return placement;
    RUNAHEAD_CO_RETURN_IF_ERROR(StandInLine(ticket, timed, seen, deadline));
    absl::Status status;
    while (const std::optional<absl::Time> until = LookForTurn(ticket, cancel, deadline, status)) {
      co_await ticket.wake_.Until(clock_, *until);
    }
    RUNAHEAD_CO_RETURN_IF_ERROR(status);
  }
}

absl::Status FleetQueue::Arrive(const Ticket& ticket, const CancelToken& cancel) {
  MutexLock lock(mu_);
  if (!std::exchange(ticket.arrived_, true)) arrivals_.Count(clock_.Now());
  return cancel.status();
}

Task<absl::StatusOr<bool>> FleetQueue::AwaitReturn(const Ticket& ticket, const ChainRequest& request,
                                                   WorkerRole missing, uint64_t returns, absl::Duration absence,
                                                   absl::Duration at_least, CancelToken& cancel, absl::Time until) {
  const CancelToken::Subscription on_cancel = cancel.OnCancel([&ticket] { ticket.wake_.Notify(); });
  const Absence away{missing, returns, absence, at_least, clock_.Now(), until};
  absl::StatusOr<bool> returned = false;
  if (!StandForReturn(ticket, request, away, returned)) co_return returned;
  while (const std::optional<absl::Time> end = LookForReturn(ticket, away, cancel, returned)) {
    co_await ticket.wake_.Until(clock_, *end);
  }
  co_return returned;
}

absl::Time FleetQueue::EndOf(const Absence& absence) const {
  const absl::Time expected =
      fleet_.OnlyRefusedAway(absence.missing) ? absence.began : fleet_.last_loss() + absence.lasts;
  return std::min(absence.until, std::max(expected, absence.began + absence.at_least));
}

bool FleetQueue::StandForReturn(const Ticket& ticket, const ChainRequest& request, const Absence& absence,
                                absl::StatusOr<bool>& returned) {
  MutexLock lock(mu_);
  returned = returns_ != absence.returns && absence.began < absence.until;
  const bool may_queue = ticket.settled_ || ticket.admitted_ || queue_size_ > 0;
  if (*returned || !may_queue || absence.began >= EndOf(absence)) return false;
  if (const absl::Status full = Admit(ticket); !full.ok()) {
    returned = full;
    return false;
  }
  ChainRequest timed = request;
  // The table is its plan's to ask.
  timed.expected_s = ticket.expected_s_ > 0 ? ticket.expected_s_ : TimedBy(ticket, request, TtftTable()).expected_s;
  Waiter waiter = WaiterOf(ticket, timed, absence.began);
  waiter.cause = QueueCause::kWorker;
  for_return_.emplace(ticket.turn_, waiter);
  QueueChanged();
  return true;
}

std::optional<absl::Time> FleetQueue::LookForReturn(const Ticket& ticket, const Absence& absence,
                                                    const CancelToken& cancel, absl::StatusOr<bool>& returned) {
  MutexLock lock(mu_);
  const absl::Status status = cancel.status();
  const absl::Time end = EndOf(absence);
  if (status.ok() && returns_ == absence.returns && clock_.Now() < end) return end;
  returned = returns_ != absence.returns;
  if (!status.ok()) returned = status;
  if (const auto found = for_return_.find(ticket.turn_); found != for_return_.end()) {
    Waited(found->second);
    for_return_.erase(found);
  }
  if (!returned.ok() || !*returned) {
    waiting_.erase(ticket.turn_);
    PlacesChanged();
  }
  QueueChanged();
  return std::nullopt;
}

FleetQueue::Waiter FleetQueue::WaiterOf(const Ticket& ticket, const ChainRequest& request, absl::Time since) const {
  Waiter waiter{&ticket, since};
  Estimate(waiter, request);
  AllowOthers(ticket, FrontS(ticket));
  return waiter;
}

void FleetQueue::Estimate(Waiter& waiter, const ChainRequest& request) const {
  waiter.may_overtake = MayOvertake(request);
  waiter.prompt = request;
  waiter.prompt.parts.clear();
  waiter.expected_s = request.expected_s;
  waiter.prefill_s = SecondsOfChainRest(request.tokens, request.known_tokens, [this](int64_t tokens) RUNAHEAD_REQUIRES(mu_) {
    return absl::ToDoubleSeconds(pace_.Expect(tokens));
  });
  if (waiter.may_overtake) waiter.prefill_s *= ShareOfPass(request.tokens);
}

// The plan that saw `seen` found no place. Whoever joined since may have made the turn its own.
absl::Status FleetQueue::StandInLine(const Ticket& ticket, const ChainRequest& request, const Seen& seen,
                                     absl::Time deadline) {
  MutexLock lock(mu_);
  auto found = waiting_.find(ticket.turn_);
  if (found == waiting_.end()) {
    if (clock_.Now() < deadline) RUNAHEAD_RETURN_IF_ERROR(Admit(ticket));
    found = waiting_.emplace(ticket.turn_, WaiterOf(ticket, request, clock_.Now())).first;
    const bool joined = std::exchange(joins_, joins_ + 1) != seen.joins;
    QueueChanged();
    if (!joined) found->second.turn = false;
  }
  if (changes_ != seen.changes) found->second.turn = true;
  return absl::OkStatus();
}

std::optional<absl::Time> FleetQueue::LookForTurn(const Ticket& ticket, const CancelToken& cancel, absl::Time deadline,
                                                  absl::Status& status) {
  MutexLock lock(mu_);
  status = cancel.status();
  if (!status.ok()) return std::nullopt;
  if (clock_.Now() >= deadline) {
    status = DeadlinePassed();
    return std::nullopt;
  }
  if (waiting_.at(ticket.turn_).turn) return std::nullopt;
  return deadline;
}

}  // namespace runahead
