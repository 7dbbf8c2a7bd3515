// When the bytes of a receive were on the wire.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace runahead {

// From the first of a frame's bytes that came to the last, on this side's MonotonicNow(): never what the peer did
// before it had the bytes to send, nor how long the receive was posted before. What is first differs by wire:
//   TCP       the frame's first chunk is read from the socket; at most 8 KiB come with their header, in no time
//   GPU       a collective library does not say: both sides have agreed to move the frame and it is its turn on the
//             communicator
// The last byte is in the receive's buffer, or where frames are staged, in the pinned memory before it.
struct WireTime {
  absl::Time first, last;
};

// How bytes came.
struct Came : WireTime {
  uint64_t sum = 0;  // RunningSum of them
};
// Runs once; what came counts with OK only.
using ReceiveDone = std::function<void(absl::Status, const Came&)>;

}  // namespace runahead
