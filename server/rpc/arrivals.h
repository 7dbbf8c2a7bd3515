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
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"

namespace runahead {

// More than any connection brings.
inline constexpr uint64_t kAnyBytes = uint64_t{1} << 62;

struct ArrivalLimits {
  int64_t bytes = int64_t{256} << 20;         // of all messages that are read at once, as they are counted
  int64_t message_bytes = int64_t{16} << 20;  // the longest
  int max_waiting = 1024;                     // calls whose message is not read yet
  // Calls of a connection that may be refused unread within a second: a client that waits as long as the refusal says,
  // and has no more open at once than it may (TransportLimits), has half as many. One that has more is hung up on.
  int max_refused = 2048;
  int64_t min_rate = int64_t{64} << 10;  // bytes a second that a connection must bring for each message on its way
  absl::Duration patience = absl::Seconds(10);       // over which the rate is judged, and how long a call waits
  absl::Duration short_patience = absl::Seconds(1);  // over which it is judged while other calls wait
  // What a connection may bring beside its messages while they are read. gRPC reads a message that is too long to its
  // end before it says so: where a connection brings more than this and the longest, all its calls here are ended.
  uint64_t other_bytes = kAnyBytes;
};

// Hears of what happens here, for metrics. Its functions are called under a lock: they must be quick, and call nothing
// of this.
struct ArrivalWatcher {
  std::function<void(int reading, int waiting, int64_t bytes)> changed = [](int, int, int64_t) {};
  enum class Refusal { kSlow, kFull, kLong };
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
  // Ends the connection of a peer. Called on the same thread, without a lock.
  using HangUp = std::function<void(const std::string& peer)>;
  // `clock` outlives this. All calls have left before the end.
  Arrivals(
      const ArrivalLimits& limits, ArrivalWatcher watcher, Clock& clock, Received received,
      HangUp hang_up = [](const std::string&) {});
  ~Arrivals();

  // `peer` is its connection. Exactly one of the call's functions is called, at once or later; GiveUp may follow Read.
  void Enter(Call& call, const std::string& peer) RUNAHEAD_EXCLUDES(mu_);
  // The call's message is here and has `bytes`, or, with 0, it does not come any more. False where the call was given
  // up meanwhile.
  [[nodiscard]] bool Arrived(Call& call, uint64_t bytes = 0) RUNAHEAD_EXCLUDES(mu_);
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
    // Since messages of it are read, or the first look after that.
    std::optional<uint64_t> first_bytes;
    absl::Time first_at;
    uint64_t arrived_bytes = 0;   // of messages that are here
    uint64_t given_up_bytes = 0;  // at the most, of messages whose clients gave up
    int64_t charge = 0;           // what those that are read are counted as

    // Whether its rate tells what its messages count as: before, each counts as the longest.
    bool settled(absl::Time now) const { return first_bytes && now - first_at >= absl::Milliseconds(250); }
    int64_t full_charge(int64_t message_bytes) const { return static_cast<int64_t>(reading.size()) * message_bytes; }
  };

  // Of the second in which the first one was.
  struct Refusals {
    absl::Time since;
    int count = 0;
  };

  bool MakeRoomFor(const std::string& peer) RUNAHEAD_REQUIRES(mu_);
  // One of the peer's calls is refused for others wait.
  void CountRefusal(const std::string& peer) RUNAHEAD_REQUIRES(mu_);
  void Begin(Call& call) RUNAHEAD_REQUIRES(mu_);
  void StartWaiting() RUNAHEAD_REQUIRES(mu_);
  void End(Call& call, ArrivalWatcher::Refusal refusal, const absl::Status& why) RUNAHEAD_REQUIRES(mu_);
  void Remove(Call& call) RUNAHEAD_REQUIRES(mu_);
  void Judge(const std::string& peer, absl::Time now) RUNAHEAD_REQUIRES(mu_);
  void JudgeRate(Connection& connection, std::optional<uint64_t> bytes, absl::Time now) RUNAHEAD_REQUIRES(mu_);
  bool BringsTooMuch(const Connection& connection, uint64_t bytes) const;
  // What the messages of a connection take within limits_.patience if they go on coming as they do: at the most as much
  // as the longest.
  int64_t ChargeOf(const Connection& connection, std::optional<uint64_t> bytes, absl::Time now) const;
  void SetCharge(Connection& connection, int64_t charge) RUNAHEAD_REQUIRES(mu_);
  bool HasRoom() const RUNAHEAD_REQUIRES(mu_);
  // Messages end, the largest first: where they come faster than before and take more than there is, and those that are
  // read for longer than limits_.patience where there is no room for a call that waits. These may keep half of all room
  // as long as they come: the other half is for those that wait, in turn.
  void EndTheLargest(absl::Time now) RUNAHEAD_REQUIRES(mu_);
  bool IsReadForLong(const Connection& connection, absl::Time now) const RUNAHEAD_REQUIRES(mu_);
  bool LongReadsTakeTooMuch(absl::Time now) const RUNAHEAD_REQUIRES(mu_);
  bool SomebodyStarves(absl::Time now) const RUNAHEAD_REQUIRES(mu_);
  void EndLongWaiting(absl::Time now) RUNAHEAD_REQUIRES(mu_);
  void Tell() RUNAHEAD_REQUIRES(mu_);  // the watcher
  // Waits until there is something to look at. False when this is to end.
  bool AwaitLook() RUNAHEAD_REQUIRES(mu_);
  void Look() RUNAHEAD_REQUIRES(mu_);
  void Watch() RUNAHEAD_EXCLUDES(mu_);

  const ArrivalLimits limits_;
  const ArrivalWatcher watcher_;
  Clock& clock_;
  const Received received_;
  const HangUp hang_up_;
  Mutex mu_;
  CondVar changed_;
  absl::flat_hash_map<Call*, Entry> calls_ RUNAHEAD_GUARDED_BY(mu_);
  absl::btree_map<std::string, Connection> connections_ RUNAHEAD_GUARDED_BY(mu_);  // that have calls here
  absl::flat_hash_map<std::string, Refusals> refusals_ RUNAHEAD_GUARDED_BY(mu_);   // by peer, of the last second
  std::vector<std::string> greedy_ RUNAHEAD_GUARDED_BY(mu_);                       // peers to hang up on
  std::string turn_ RUNAHEAD_GUARDED_BY(mu_);  // who had the last turn of those that wait
  int reading_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int waiting_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int64_t charged_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // of all connections
  bool asleep_ RUNAHEAD_GUARDED_BY(mu_) = false;  // the thread has nothing to look at
  bool stopping_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
