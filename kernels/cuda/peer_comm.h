// One direction between two GPUs, as the NCCL edge wants it: the seam between the edge's protocol (worker/link, plain
// C++, tested with a fake) and NCCL, which only the plugin links.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "kernels/base/event.h"

namespace runahead {

enum class PeerRank { kSender = 0, kReceiver = 1 };

// A communicator of two ranks with a stream of its own. The n-th Send of one side meets the n-th Recv of the other; the
// sizes must agree. Thread-safe. Nothing here waits for the peer, and the destructor some seconds at most: it aborts
// what is under way, and the events of that have fired when it returns. It may wait for all else that runs on the GPU,
// also for what waits for transfers of other communicators: whoever ends several stops them all first. Nothing fires
// within Send, Recv, Stop or Health, so that callers may hold locks.
class PeerComm {
 public:
  virtual ~PeerComm() = default;
  // Fires OK when the peer has joined, else with UNAVAILABLE: the peer did not come within the deadline, or NCCL
  // failed.
  virtual Event ready() const = 0;
  // Device memory. Enqueues in the order of the calls; before ready() has fired they wait for it. Fires when `bytes`
  // may be reused, or `into` is filled; UNAVAILABLE, as all that is under way, when the communicator failed.
  // Where `sum` is not null it gets a checksum of the bytes before the event fires with OK: of what was sent as it lay
  // here before, of what was received as it lies here then. A kernel computes it, so that equal bytes have equal sums
  // on all GPUs; nothing but the sum comes to the host.
  virtual Event Send(ConstBufferRef bytes, std::shared_ptr<uint64_t> sum) = 0;
  virtual Event Recv(BufferRef into, std::shared_ptr<uint64_t> sum) = 0;
  // Begins to end it: what is under way is aborted and its events fire soon. Does not wait; on any thread. Idempotent.
  virtual void Stop() = 0;
  // The first asynchronous error of NCCL, or why the communicator could not be made; OK while all is well.
  virtual absl::Status Health() const = 0;
};

// Thread-safe.
class PeerCommFactory {
 public:
  virtual ~PeerCommFactory() = default;
  // What is told to both sides besides: a GPU that both see under one name cannot be both ranks (unless NCCL takes the
  // processes for two hosts, NCCL_HOSTID). "nccl 2.27.7 GPU-1c9e... host 8f3a"; equal up to "GPU" on sides that fit.
  virtual const std::string& identity() const = 0;
  // 128 bytes that both sides give to Open; made by one of them and carried to the other by the caller.
  virtual absl::StatusOr<std::string> NewId() = 0;
  // Returns at once; ready() says when it is made. INVALID_ARGUMENT for an id of another size.
  virtual absl::StatusOr<std::unique_ptr<PeerComm>> Open(const std::string& id, PeerRank rank) = 0;
};

}  // namespace runahead
