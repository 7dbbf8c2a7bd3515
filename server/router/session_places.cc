#include "server/router/session_places.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {

SessionPlaces::SessionPlaces(int max_starting, int max_running, FleetQueue& queue)
    : max_starting_(max_starting), max_running_(max_running), queue_(queue) {}

absl::StatusOr<std::unique_ptr<SessionPlaces::Place>> SessionPlaces::Enter() {
  auto place = std::make_unique<Place>(*this);
  if (TakeNow(*place)) return place;
  RUNAHEAD_ASSIGN_OR_RETURN(place->queued_, queue_.EnterQueue());
  Wait(*place);
  return place;
}

void SessionPlaces::Take(Place& place) {
  place.state_ = Place::State::kStarting;
  ++starting_;
  ++running_;
}

bool SessionPlaces::TakeNow(Place& place) {
  MutexLock lock(mu_);
  if (Full()) return false;
  Take(place);
  return true;
}

void SessionPlaces::Wait(Place& place) {
  MutexLock lock(mu_);
  waiting_.push_back(&place);
  GiveTurns();
}

void SessionPlaces::GiveTurns() {
  while (!waiting_.empty() && !Full()) {
    Place& next = *waiting_.front();
    waiting_.pop_front();
    Take(next);
    next.turn_.Notify();
  }
}

bool SessionPlaces::Look(Place& place, bool gone) {
  MutexLock lock(mu_);
  if (place.state_ != Place::State::kWaiting) return true;
  if (!gone) return false;
  waiting_.remove(&place);
  place.state_ = Place::State::kGivenUp;
  return true;
}

void SessionPlaces::Settle(Place& place) {
  MutexLock lock(mu_);
  if (place.state_ != Place::State::kStarting) return;
  place.state_ = Place::State::kSettled;
  --starting_;
  GiveTurns();
}

void SessionPlaces::GiveBack(Place& place) {
  MutexLock lock(mu_);
  if (place.state_ == Place::State::kWaiting) waiting_.remove(&place);
  if (place.state_ == Place::State::kStarting) --starting_;
  if (place.state_ == Place::State::kStarting || place.state_ == Place::State::kSettled) --running_;
  GiveTurns();
}

SessionPlaces::Place::~Place() {
  LeaveQueue();
  places_.GiveBack(*this);
}

void SessionPlaces::Place::LeaveQueue() {
  if (const auto since = std::exchange(queued_, std::nullopt)) places_.queue_.LeaveQueue(*since);
}

void SessionPlaces::Place::Settle() {
  places_.Settle(*this);
}

Task<> SessionPlaces::Place::Await(CancelToken& cancel) {
  {
    const CancelToken::Subscription on_cancel = cancel.OnCancel([this] { turn_.Notify(); });
    while (!places_.Look(*this, cancel.cancelled())) co_await turn_.Wait();
  }
  LeaveQueue();
}

}  // namespace runahead
