// How many requests run at once: the others wait, in the order in which they came.
#pragma once

#include <list>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/base/mutex.h"
#include "server/router/cancel_token.h"
#include "server/router/fleet_queue.h"
#include "server/task/task.h"
#include "server/task/wake.h"

namespace runahead {

// Thread-safe. Outlives its places.
class SessionPlaces {
 public:
  // Of one request; given back when destroyed.
  class Place {
   public:
    explicit Place(SessionPlaces& places) : places_(places) {}
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // Until it has its turn. When `cancel` is cancelled meanwhile it does not wait any more, whatever runs, and counts
    // nowhere: the request is to say so and to end.
    Task<> Await(CancelToken& cancel);

    // It has what others wait for: from now on it does not count among those that are starting. It may be said again.
    void Settle();

   private:
    friend class SessionPlaces;
    enum class State { kWaiting, kStarting, kSettled, kGivenUp };
    void LeaveQueue();

    SessionPlaces& places_;
    State state_ = State::kWaiting;     // under the lock of places_
    std::optional<absl::Time> queued_;  // it counts in the queue since then; of its own coroutine
    Wake turn_;
  };

  // At most `max_starting` that have not settled, and `max_running` in all, run at once. Those that wait count in the
  // `queue`, which must outlive this.
  SessionPlaces(int max_starting, int max_running, FleetQueue& queue);
  SessionPlaces(const SessionPlaces&) = delete;
  SessionPlaces& operator=(const SessionPlaces&) = delete;

  // RESOURCE_EXHAUSTED when it would have to wait and the queue is full.
  absl::StatusOr<std::unique_ptr<Place>> Enter() RUNAHEAD_EXCLUDES(mu_);

 private:
  // Takes it at once, if it is free.
  bool TakeNow(Place& place) RUNAHEAD_EXCLUDES(mu_);
  void Wait(Place& place) RUNAHEAD_EXCLUDES(mu_);
  // Whether it waits no more, for it has its turn or `gone` is true.
  bool Look(Place& place, bool gone) RUNAHEAD_EXCLUDES(mu_);
  void Settle(Place& place) RUNAHEAD_EXCLUDES(mu_);
  void GiveBack(Place& place) RUNAHEAD_EXCLUDES(mu_);
  bool Full() const RUNAHEAD_REQUIRES(mu_) { return starting_ >= max_starting_ || running_ >= max_running_; }
  void Take(Place& place) RUNAHEAD_REQUIRES(mu_);
  void GiveTurns() RUNAHEAD_REQUIRES(mu_);

  const int max_starting_;
  const int max_running_;
  FleetQueue& queue_;
  Mutex mu_;
  std::list<Place*> waiting_ RUNAHEAD_GUARDED_BY(mu_);
  int starting_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // of those that run
  int running_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead
