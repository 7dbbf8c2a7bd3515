// What stands before methods that anybody may call, on every port: health, reflection, and a worker's Prove. Their
// messages are short.
#pragma once

#include <cstdint>

#include "server/base/clock.h"
#include "server/rpc/arrivals.h"
#include "server/rpc/departures.h"
#include "server/rpc/message_call.h"
#include "server/rpc/received_bytes.h"

namespace runahead {

// Bytes of the longest message that those methods take: as much as HTTP/2 lets a call bring before it is read.
inline constexpr int64_t kShortMessageBytes = int64_t{64} << 10;
// Of messages that are read, and again of answers that are not taken.
inline constexpr int64_t kOpenDoorBytes = int64_t{16} << 20;
// How long a message may wait to be read, and an answer to be taken beyond what its bytes take.
inline constexpr absl::Duration kOpenDoorPatience = absl::Seconds(10);

// Many of them are read at once, for they take little: silent callers keep nobody waiting. A connection that brings
// more than it may is seen soon. Thread-safe; outlives the services that use it. One for a port.
class OpenDoor {
 public:
  // `min_rate`: bytes a second at which messages must come, and answers be taken.
  explicit OpenDoor(ArrivalWatcher messages = {}, DepartureWatcher answers = {}, int64_t min_rate = int64_t{64} << 10,
                    Clock& clock = RealClock());

  CallDoor door() {
    return {.admit = nullptr, .arrivals = &arrivals_, .departures = &departures_, .longest = kShortMessageBytes};
  }

 private:
  ReceivedBytes connections_;  // of arrivals_' thread
  Arrivals arrivals_;
  Departures departures_;
};

}  // namespace runahead
