// Whose turn it is among the requests that wait, and which of them may be overtaken (overtaking.h).
#include <algorithm>
#include <cmath>
#include <limits>

#include "server/router/fleet_queue.h"

namespace runahead {

// The one that begins, and the one that may go before what a worker has. When that one has gone, or has given up, the
// next is looked for.
void FleetQueue::WakeNext() {
  if (waiting_.empty()) return;
  std::vector<Waiter*> waiters;
  Lineup lineup;
  for (auto& [turn, waiter] : waiting_) {
    waiters.push_back(&waiter);
    lineup.Add(waiter, changes_);
  }
  GiveTurn(*waiters[*WhoBegins(lineup.waiting)]);
  const double room_s = fleet_.OvertakingRoomS();
  if (room_s <= 0) return;
  if (const std::optional<size_t> overtakes = WhoOvertakes(lineup.overtaking, room_s)) GiveTurn(*waiters[*overtakes]);
}

WaitingPrompt FleetQueue::ViewOf(const Waiter& waiter) {
  const Claim& claim = waiter.ticket->claim_;
  return {waiter.expected_s, waiter.ticket->allowance_.value_or(Allowance()), waiter.may_overtake, claim.tenant,
          claim.priority};
}

void FleetQueue::Lineup::Add(const Waiter& waiter, uint64_t changes) {
  waiting.push_back(ViewOf(waiter));
  overtaking.push_back(waiting.back());
  if (waiter.ticket->unable_at_ == changes) overtaking.back().may_overtake = false;
}

void FleetQueue::CannotOvertake(const Ticket& ticket, const Seen& seen) {
  MutexLock lock(mu_);
  ticket.unable_at_ = seen.changes;
  WakeNext();
}

FleetQueue::Lineup FleetQueue::LineUp(const Ticket& ticket, const ChainRequest& request) const {
  Waiter own{&ticket, absl::InfinitePast()};
  own.may_overtake = MayOvertake(request);
  own.expected_s = request.expected_s;
  Lineup lineup;
  lineup.waiting.reserve(waiting_.size() + 1);
  lineup.overtaking.reserve(waiting_.size() + 1);
  bool seen = false;
  for (const auto& [turn, waiter] : waiting_) {
    if (!seen && ticket.turn_ <= turn) {
      seen = true;
      lineup.own = lineup.waiting.size();
      if (ticket.turn_ < turn) lineup.Add(own, changes_);
    }
    lineup.Add(waiter, changes_);
  }
  if (seen) return lineup;
  lineup.own = lineup.waiting.size();
  lineup.Add(own, changes_);
  return lineup;
}

bool FleetQueue::Bears(const Waiter& waiter, double expected_s) {
  const WaitingPrompt prompt = ViewOf(waiter);
  return expected_s <= BearsS(prompt.expected_s, prompt.allowance);
}

bool FleetQueue::AllBear(const Ticket& ticket, double expected_s) const {
  return std::all_of(waiting_.begin(), waiting_.lower_bound(ticket.turn_),
                     [&](const auto& older) { return Bears(older.second, expected_s); });
}

// The share that others took of it they took of the new one, too.
void FleetQueue::AllowOthers(const Ticket& ticket, double front_s) const {
  if (ticket.allowance_ && (ticket.allowance_known_ || !ticket.known_)) return;
  const double whole_s = Allowance::Of(front_s + ticket.alone_s_).left_s();
  const double share = ticket.allowed_s_ > 0 ? ticket.allowance_->left_s() / ticket.allowed_s_ : 1;
  ticket.allowance_ = Allowance::Left(share * whole_s);
  ticket.allowed_s_ = whole_s;
  ticket.allowance_known_ = ticket.known_;
}

FleetQueue::Front FleetQueue::FrontOfLine() const {
  const FleetLine line = fleet_.Line({});
  const auto workers =
      std::count_if(line.workers.begin(), line.workers.end(), [](const auto& worker) { return worker.ready; });
  return {LeastBacklogS(line, /*overtake=*/false), static_cast<double>(std::max<int64_t>(1, workers))};
}

double FleetQueue::FrontS(const Ticket& ticket) const {
  double ahead_s = 0;
  for (auto older = waiting_.begin(); older != waiting_.lower_bound(ticket.turn_); ++older) {
    ahead_s += older->second.expected_s;
  }
  return FrontOfLine().Before(ahead_s);
}

void FleetQueue::AllowAnew() const {
  const auto is_old = [](const auto& one) { return one.second.ticket->known_ && !one.second.ticket->allowance_known_; };
  if (std::none_of(waiting_.begin(), waiting_.end(), is_old)) return;
  const Front front = FrontOfLine();
  const absl::Time now = clock_.Now();
  double ahead_s = 0;
  for (const auto& one : waiting_) {
    const Waiter& waiter = one.second;
    const double waited_s = absl::ToDoubleSeconds(now - waiter.since);
    if (is_old(one)) AllowOthers(*waiter.ticket, waited_s + front.Before(ahead_s));
    ahead_s += waiter.expected_s;
  }
}

void FleetQueue::CountOvertaken(const Ticket& ticket, double expected_s, size_t at_worker) {
  if (ticket.had_) return;
  ticket.had_ = ticket.turn_;
  ticket.overtook_s_ = expected_s;
  size_t overtaken = at_worker;
  for (auto older = waiting_.begin(); older != waiting_.lower_bound(ticket.turn_); ++older) {
    if (older->first.priority == ticket.turn_.priority) ticket.had_ = std::min(*ticket.had_, older->first);
    if (auto& allowance = older->second.ticket->allowance_) allowance->Take(expected_s);
    ticket.overtook_.push_back(older->first);
    ++overtaken;
  }
  metrics_.CountOvertaken(static_cast<int64_t>(overtaken));
}

void FleetQueue::GiveBackTaken(const Ticket& ticket) {
  for (const Turn& turn : ticket.overtook_) {
    const auto found = waiting_.find(turn);
    if (found != waiting_.end()) found->second.ticket->allowance_->GiveBack(ticket.overtook_s_);
  }
}

double FleetQueue::LeastBacklogS(const FleetLine& line, bool overtake) const {
  const absl::Time now = clock_.Now();
  double least = std::numeric_limits<double>::infinity();
  for (const FleetLine::Worker& worker : line.workers) {
    if (!worker.ready) continue;
    WorkerView view;
    worker.outlook.Fill(now, view);
    least = std::min(least, overtake && view.place_s > 0 ? view.place_s : view.backlog_s);
  }
  return std::isfinite(least) ? least : 0;  // who waits for workers to come back waits for as long as it may
}

}  // namespace runahead
