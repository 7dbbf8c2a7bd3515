// When the bytes of a receive were on the wire.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace runahead {

// From the first of a frame's bytes that came to the last, on this side's MonotonicNow(): never what the peer did
// before it had the bytes to send, nor how long the receive was posted before. What is first differs by wire:
//   TCP       the frame's first chunk is read from the socket; at most 8 KiB come with their header, in no time
//   UCX       it does not say: this side takes up what the peer has announced; small ones come in no time, as over TCP
//   GPU       a collective library does not say: both sides have agreed to move the frame and it is its turn on the
//             communicator
// The last byte is in the receive's buffer, or where frames are staged, in the pinned memory before it.
struct WireTime {
  absl::Time first, last;
};

// How a receive ended, and with OK when its bytes were on the wire. Runs once, on any thread.
using ReceiveDone = std::function<void(absl::Status, WireTime)>;

// `done`, for who can only say that it failed.
inline std::function<void(absl::Status)> Failing(ReceiveDone done) {
  return [done = std::move(done)](absl::Status why) { done(std::move(why), {}); };
}

}  // namespace runahead
