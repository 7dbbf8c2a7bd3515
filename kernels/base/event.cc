#include "kernels/base/event.h"

#include <atomic>
#include <utility>

#include "kernels/base/monotonic.h"

namespace runahead {

struct Event::State {
  explicit State(std::shared_ptr<NativeEvent> of) : native(std::move(of)) {}
  mutable Mutex mu;
  mutable CondVar fired_cv;
  std::shared_ptr<NativeEvent> native RUNAHEAD_GUARDED_BY(mu);  // until it fires
  std::optional<absl::Status> status RUNAHEAD_GUARDED_BY(mu);
  std::vector<Callback> callbacks RUNAHEAD_GUARDED_BY(mu);

  bool Fire(absl::Status with) {
    std::vector<Callback> run;
    std::shared_ptr<NativeEvent> passed;  // let go outside of the lock
    {
      MutexLock lock(mu);
      if (status.has_value()) return false;
      status = with;
      run.swap(callbacks);
      passed.swap(native);
      fired_cv.NotifyAll();
    }
    for (const Callback& callback : run) callback(with);
    return true;
  }
};

struct EventSource::Guard {
  explicit Guard(std::shared_ptr<NativeEvent> native) : state(std::make_shared<Event::State>(std::move(native))) {}
  const std::shared_ptr<Event::State> state;
  ~Guard() { state->Fire(absl::AbortedError("the work was given up before it finished")); }
};

bool Event::fired() const {
  return status().has_value();
}

std::optional<absl::Status> Event::status() const {
  if (state_ == nullptr) return absl::OkStatus();
  MutexLock lock(state_->mu);
  return state_->status;
}

void Event::OnFire(Callback callback) const {
  if (state_ == nullptr) return callback(absl::OkStatus());
  absl::Status fired_with;
  {
    MutexLock lock(state_->mu);
    if (!state_->status.has_value()) {
      state_->callbacks.push_back(std::move(callback));
      return;
    }
    fired_with = *state_->status;
  }
  callback(fired_with);
}

absl::Status Event::Wait(absl::Duration timeout) const {
  if (state_ == nullptr) return absl::OkStatus();
  const absl::Time deadline = MonotonicNow() + timeout;
  MutexLock lock(state_->mu);
  while (!state_->status.has_value()) {
    if (!state_->fired_cv.WaitFor(state_->mu, deadline - MonotonicNow()) && MonotonicNow() >= deadline &&
        !state_->status.has_value()) {
      return absl::DeadlineExceededError("the wait for an event ran out of time");
    }
  }
  return *state_->status;
}

std::shared_ptr<NativeEvent> Event::native() const {
  if (state_ == nullptr) return nullptr;
  MutexLock lock(state_->mu);
  return state_->native;
}

EventSource::EventSource(std::shared_ptr<NativeEvent> native) : guard_(std::make_shared<Guard>(std::move(native))) {}
Event EventSource::event() const {
  return Event(guard_->state);
}
bool EventSource::Fire(absl::Status status) const {
  return guard_->state->Fire(std::move(status));
}

Event WhenAll(const std::vector<Event>& events) {
  struct Join {
    EventSource source;
    std::vector<Event> events;
    std::atomic<size_t> left{0};
  };
  if (events.empty()) return Event();
  auto join = std::make_shared<Join>();
  join->events = events;
  join->left = events.size();
  const Event all = join->source.event();
  for (const Event& event : events) {
    event.OnFire([join](const absl::Status&) {
      if (--join->left > 0) return;
      for (const Event& done : join->events) {
        if (absl::Status status = *done.status(); !status.ok()) {
          join->source.Fire(status);
          return;
        }
      }
      join->source.Fire(absl::OkStatus());
    });
  }
  return all;
}

}  // namespace runahead
