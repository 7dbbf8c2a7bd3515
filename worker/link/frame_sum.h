// The checksum that crosses an edge with each frame, so that bits which flip on the way never become KV.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace runahead {

struct FrameId;
struct PeerKey;

// The checksum of a frame's bytes and of which frame they are. The worker that computes a frame's KV computes its sum.
// The sum travels with the frame along the chain. Each worker checks the bytes against it before anything reads them
// and before it passes them on.
struct FrameSum {
  enum class Kind : uint8_t {
    kNone,    // not known
    kHost,    // RunningSum, seeded by SeedOf
    kDevice,  // by a kernel (PeerCommFactory::Sum)
  };
  Kind kind = Kind::kNone;
  uint64_t value = 0;
};

// What a frame of `size` bytes is, as a seed of its sum on the host.
uint64_t SeedOf(const FrameId& id, size_t size);

// DATA_LOSS: the frame came damaged so often.
absl::Status DamagedFrame(const FrameId& id, int times);

// Says in the log that a frame from `from` came damaged, now for the `times`-th time; at most once in 10 s, for a
// network that flips bits flips many. Any thread.
void LogDamagedFrame(const FrameId& id, int times, const PeerKey& from);

// What an edge tells of frames that came damaged. Any thread; each may be empty.
struct FrameFaults {
  std::function<void()> on_corrupt;  // one came here whose bytes do not match its sum
  std::function<void()> on_retry;    // one is sent from here again, because it came damaged
};

}  // namespace runahead
