// One-shot completion with a status: how streams, edges, hand-off and the stage tell each other that something is done.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"

namespace runahead {

// What the queues of one device need to wait for an event without a thread between; opaque to everybody else.
class NativeEvent {
 public:
  virtual ~NativeEvent() = default;
};

// Fires exactly once. Copies share the same state. Thread-safe. A default-constructed Event has fired with OK, so that
// "after nothing" needs no special case.
class Event {
 public:
  using Callback = std::function<void(const absl::Status&)>;

  Event() = default;

  bool fired() const;
  // The status, or nothing while the event has not fired.
  std::optional<absl::Status> status() const;
  // Runs `callback` once: at once, on this thread, when already fired; else on the thread that fires. Callbacks must be
  // short and must not block.
  void OnFire(Callback callback) const;
  // Waits for the event; DEADLINE_EXCEEDED when `timeout` runs out (the work goes on). Never call it on a thread that
  // is needed to make the event fire.
  absl::Status Wait(absl::Duration timeout = absl::InfiniteDuration()) const;
  // Null where none was given, and once the event has fired: it goes with the thread that fires, not with whoever keeps
  // the event. It may be reached before the event fires, and then what is enqueued before the event has run; whoever
  // fires the event may still let it fail for reasons of his own.
  std::shared_ptr<NativeEvent> native() const;

 private:
  friend class EventSource;
  struct State;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// The side that fires. The last copy going away unfired fires ABORTED, so that no waiter is forgotten.
class EventSource {
 public:
  explicit EventSource(std::shared_ptr<NativeEvent> native = nullptr);
  Event event() const;
  // Fires with `status`. False, and nothing happens, when it had fired already.
  bool Fire(absl::Status status) const;

 private:
  struct Guard;
  std::shared_ptr<Guard> guard_;
};

// Fires when all have fired: OK, or the first failure in the order of the list.
Event WhenAll(const std::vector<Event>& events);

}  // namespace runahead
