// Messages on their way to a server. Nobody knows how long one will be before it is here, and gRPC keeps whatever has
// come of it: so only so many are read at once, connections have their turns, and one that does not come is ended.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"

namespace runahead {

struct ArrivalLimits {
  int64_t bytes = int64_t{256} << 20;         // of all messages that are read at once, each counted as the longest
  int64_t message_bytes = int64_t{16} << 20;  // the longest
  int max_waiting = 1024;                     // calls whose message is not read yet
  int64_t min_rate = int64_t{64} << 10;       // bytes a second that a connection must bring for each message on its way
  absl::Duration patience = absl::Seconds(10);       // over which the rate is judged, and how long a call waits
  absl::Duration short_patience = absl::Seconds(1);  // over which it is judged while other calls wait
};

// Hears of what happens here, for metrics. Its functions are called under a lock: they must be quick, and call nothing
// of this.
struct ArrivalWatcher {
  std::function<void(int reading, int waiting)> changed = [](int, int) {};
  enum class Refusal { kSlow, kFull };
  std::function<void(Refusal)> refused = [](Refusal) {};
};

// Thread-safe.
class Arrivals {
 public:
  // One call, from Enter until it has arrived, was abandoned or given up. Both are called on any thread, under a lock:
  // they must not wait, nor call Arrivals.
  class Call {
   public:
    virtual ~Call() = default;
    virtual void Read() = 0;                           // its message may be read now
    virtual void GiveUp(const absl::Status& why) = 0;  // it is to end, before or while it is read
  };

  // `received` says how many bytes have come from a peer; nothing where it cannot know. Called on a thread of this.
  using Received = std::function<std::optional<uint64_t>(const std::string& peer)>;
  // `clock` outlives this. All calls have left before the end.
  Arrivals(const ArrivalLimits& limits, ArrivalWatcher watcher, Clock& clock, Received received);
  ~Arrivals();

  // `peer` is its connection. Exactly one of the call's functions is called, at once or later; GiveUp may follow Read.
  void Enter(Call& call, const std::string& peer) RUNAHEAD_EXCLUDES(mu_);
  // What was read is here, or will not come any more. False where the call was given up meanwhile.
  [[nodiscard]] bool Arrived(Call& call) RUNAHEAD_EXCLUDES(mu_);
  // The call ends before it is read. False where it is read already, or given up: nothing happens.
  [[nodiscard]] bool Abandon(Call& call) RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Entry {
    std::string peer;
    absl::Time since;  // it waits, or is read
    bool reading = false;
  };
  struct Connection {
    std::deque<Call*> waiting;  // in the order in which they came
    std::deque<Call*> reading;  // likewise
    bool slow = false;          // one of them did not come
    // The span over which its rate is judged.
    absl::Time span_began;
    std::optional<uint64_t> span_bytes;
  };

  bool MakeRoomFor(const std::string& peer) RUNAHEAD_REQUIRES(mu_);
  void Begin(Call& call) RUNAHEAD_REQUIRES(mu_);
  void StartWaiting() RUNAHEAD_REQUIRES(mu_);
  void End(Call& call, ArrivalWatcher::Refusal refusal, const absl::Status& why) RUNAHEAD_REQUIRES(mu_);
  void Remove(Call& call) RUNAHEAD_REQUIRES(mu_);
  void Judge(const std::string& peer, absl::Time now) RUNAHEAD_REQUIRES(mu_);
  void EndLongWaiting(absl::Time now) RUNAHEAD_REQUIRES(mu_);
  int most() const;  // messages that may be read at once
  void Watch() RUNAHEAD_EXCLUDES(mu_);

  const ArrivalLimits limits_;
  const ArrivalWatcher watcher_;
  Clock& clock_;
  const Received received_;
  Mutex mu_;
  CondVar changed_;
  absl::flat_hash_map<Call*, Entry> calls_ RUNAHEAD_GUARDED_BY(mu_);
  absl::btree_map<std::string, Connection> connections_ RUNAHEAD_GUARDED_BY(mu_);  // that have calls here
  std::string turn_ RUNAHEAD_GUARDED_BY(mu_);  // who had the last turn of those that wait
  int reading_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int waiting_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  bool asleep_ RUNAHEAD_GUARDED_BY(mu_) = false;  // the thread has nothing to look at
  bool stopping_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
