// Bytes that go from one worker to another: what either end of a transfer is given. A transfer is offered; who gets it
// grants places for its bytes, a chunk or all at once, or does not want them. They come in chunks, with a checksum over
// all of them. Bytes that came damaged are asked for again. At the end the receiver answers, and only then are the
// sender's bytes its own again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/buffer.h"
#include "kernels/base/event.h"
#include "worker/link/staging_lane.h"
#include "worker/link/wire_time.h"

namespace runahead {

// The bytes of one transfer are sent at most this often.
inline constexpr int kTransferAttempts = 3;
// So many chunks of one transfer are in staging at each end at most, beside the one that is being sent: copies and wire
// do not keep step, and a thread that is woken runs later where cores are busy. 16 MiB are 8 ms at 2 GB/s.
inline constexpr int kStagedChunks = 16;

// Moves bytes past the connection, from device to device: those of the n-th Send at one end become those of the n-th
// Recv at the other, whose size is the same. Any thread. An event that fires with an error comes with the connection's
// end.
class ByteMover {
 public:
  virtual ~ByteMover() = default;
  // `sum`, where it is not null, gets a checksum of the bytes before the event fires with OK; it is of the mover's own
  // kind. Nothing here holds the bytes then.
  virtual Event Send(ConstBufferRef bytes, std::shared_ptr<uint64_t> sum) = 0;
  virtual Event Recv(BufferRef into, std::shared_ptr<Came> came) = 0;
};

// Bytes that go, from memory of the host, or of the device that `lane` or `mover` is of.
struct Outbound {
  Outbound() = default;
  Outbound(ConstBufferRef all) : bytes(std::move(all)) {}  // NOLINT: bytes alone are one, too

  ConstBufferRef bytes;
  uint64_t seed = 0;                 // of the sum: what the bytes are
  std::optional<uint64_t> sum = {};  // RunningSum of all bytes, where it is known; else it is computed
  std::shared_ptr<StagingLane> lane = nullptr;
  std::shared_ptr<ByteMover> mover = nullptr;
  std::function<void()> on_again = nullptr;  // they are sent once more; may be empty
};

// Where bytes go that come. Filled in order.
struct Inbound {
  std::vector<BufferRef> into;  // one piece where it is memory of a device
  uint64_t seed = 0;            // as Outbound's
  std::shared_ptr<StagingLane> lane = nullptr;
  std::shared_ptr<ByteMover> mover = nullptr;           // as the sender's
  std::function<void(int times)> on_damaged = nullptr;  // they came damaged `times` times so far; may be empty
};

// What a transfer asks of the connection that it goes over. All on the connection's thread.
class TransferWire {
 public:
  virtual ~TransferWire() = default;
  // Of bytes that come: there is place for so many more; all are to be sent from the first one on again.
  virtual void Grant(uint64_t transfer, uint64_t bytes) = 0;
  virtual void Again(uint64_t transfer) = 0;
  // Nothing more comes of it: `status` is what its `done` gets next. It was tried `attempts` times.
  virtual void Over(uint64_t transfer, int attempts, const absl::Status& status) = 0;
  // Of bytes that go: a chunk is there that was not before.
  virtual void Ready(uint64_t transfer) = 0;
  // All went past the connection, and this is their sum.
  virtual void Moved(uint64_t transfer, uint64_t sum) = 0;
  // It was answered, and nothing of it is under way.
  virtual void Gone(uint64_t transfer) = 0;
  // What was promised cannot be kept.
  virtual void Break(const absl::Status& why) = 0;
};

// Runs something on the connection's thread, also after the connection's end.
using Later = std::function<void(std::function<void()>)>;

}  // namespace runahead
