// Answers on their way to clients. gRPC keeps an answer until its client has taken it, however long that takes: so all
// of them together take only so much, and one that is not taken is ended.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"

namespace runahead {

struct DepartureLimits {
  int64_t bytes = int64_t{64} << 20;            // of all answers that are not taken yet
  int64_t call_bytes = int64_t{16} << 10;       // what a call takes beside its answer
  int64_t min_rate = int64_t{64} << 10;         // bytes a second at which a client must take an answer
  absl::Duration patience = absl::Seconds(10);  // that it has besides
};

// Hears of what happens here, for metrics. Its functions are called under a lock: they must be quick, and call nothing
// of this.
struct DepartureWatcher {
  std::function<void(int64_t bytes)> changed = [](int64_t) {};
  enum class Cut { kSlow, kFull };
  std::function<void(Cut)> cut = [](Cut) {};
};

// Thread-safe.
class Departures {
 public:
  // One call, from Enter until Leave.
  class Call {
   public:
    virtual ~Call() = default;
    // Its answer is not to be written any more. Called once at the most, on any thread, under a lock: it must not wait,
    // nor call Departures.
    virtual void CutOff() = 0;
  };

  // `clock` outlives this. All calls have left before the end.
  Departures(const DepartureLimits& limits, DepartureWatcher watcher, Clock& clock);
  ~Departures();

  // An answer of `bytes` begins to be written over the connection `peer`. Where there is no room for it, others are cut
  // off whose connection has more than this one would have; RESOURCE_EXHAUSTED where there are none.
  absl::Status Enter(Call& call, const std::string& peer, int64_t bytes) RUNAHEAD_EXCLUDES(mu_);
  // The call has ended: its answer was taken, or cut off. Calls that never entered may leave as well.
  void Leave(Call& call) RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Entry {
    std::string peer;
    int64_t bytes = 0;  // 0: it is cut off
    uint64_t number = 0;
    absl::Time ends;
  };
  struct Connection {
    int64_t bytes = 0;
    absl::btree_map<uint64_t, Call*> calls;  // by their numbers: the oldest is first
  };

  bool MakeRoomFor(const std::string& peer, int64_t bytes) RUNAHEAD_REQUIRES(mu_);
  void CutOff(Call& call, DepartureWatcher::Cut why) RUNAHEAD_REQUIRES(mu_);
  void GiveBack(Entry& entry) RUNAHEAD_REQUIRES(mu_);
  void CutOffSlow(absl::Time now) RUNAHEAD_REQUIRES(mu_);
  void Watch() RUNAHEAD_EXCLUDES(mu_);

  const DepartureLimits limits_;
  const DepartureWatcher watcher_;
  Clock& clock_;
  Mutex mu_;
  CondVar changed_;
  absl::flat_hash_map<Call*, Entry> calls_ RUNAHEAD_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, Connection> connections_ RUNAHEAD_GUARDED_BY(mu_);  // that have bytes here
  int64_t taken_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  uint64_t next_number_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  bool asleep_ RUNAHEAD_GUARDED_BY(mu_) = false;  // the thread has nothing to look at
  bool stopping_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
