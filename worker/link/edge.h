// One edge of the prefill line: KV frames between two neighbours. Frames are matched by what they are, not by when they
// come. Implementations: over a message engine (message/), from GPU to GPU (device/), in one process (tests/testing);
// decorators pace it and count it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "kernels/base/event.h"
#include "worker/link/frame_sum.h"
#include "worker/link/wire_time.h"

namespace runahead {

using JobId = uint64_t;

// Who is meant, beside where it listens: a process's incarnation (64 random bits drawn at its start), its epoch (counts
// the control streams that it has lost; nothing of an earlier one is used again), and which of the connections to it: 0
// for hand-off, from 1 the generation of the edge, which is made anew after it broke.
struct PeerKey {
  uint64_t incarnation = 0;
  uint32_t epoch = 0;
  uint32_t generation = 0;
  friend bool operator==(const PeerKey&, const PeerKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const PeerKey& key) {
    return H::combine(std::move(h), key.incarnation, key.epoch, key.generation);
  }
};

// For logs and messages: "9f21.../0", an edge's with its generation, "9f21.../0#2".
std::string Describe(const PeerKey& key);

// A peer process: where it listens (opaque to all but the link layer) and which of its lives and connections is meant.
// A restart at the same address is another peer.
struct PeerId {
  std::string address;
  uint64_t incarnation = 0;
  // How its GPU can be reached (PeerCommFactory::identity()); empty: only its host can. Not compared.
  std::string device_link = {};
  uint32_t epoch = 0;
  uint32_t generation = 0;
  PeerKey key() const { return {incarnation, epoch, generation}; }
  friend bool operator==(const PeerId& a, const PeerId& b) { return a.address == b.address && a.key() == b.key(); }
};

// Names a frame to both ends. Piece 0 of a job is the KV of its prefix, piece p + 1 that of its part p; `layer` counts
// from 0.
struct FrameId {
  JobId job = 0;
  int32_t layer = 0;
  int32_t piece = 0;
  friend bool operator==(const FrameId&, const FrameId&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const FrameId& id) {
    return H::combine(std::move(h), id.job, id.layer, id.piece);
  }
};

// The event of a receive, with when its bytes were on the wire and the checksum that they match.
class Reception : public Event {
 public:
  // `wire` and `sum` are written before `event` fires with OK, and not read before. Null: nothing comes over a wire.
  Reception(const Event& event, std::shared_ptr<const WireTime> wire, std::shared_ptr<const FrameSum> sum)
      : Event(event), wire_(std::move(wire)), sum_(std::move(sum)) {}
  const std::shared_ptr<const WireTime>& wire() const { return wire_; }
  const std::shared_ptr<const FrameSum>& sum() const { return sum_; }

 private:
  std::shared_ptr<const WireTime> wire_;
  std::shared_ptr<const FrameSum> sum_;
};

// Thread-safe. Both neighbours hold an Edge to each other; frames may flow both ways.
class Edge {
 public:
  virtual ~Edge() = default;

  // Sends `bytes` to the peer once `after` has fired; when `after` fires with an error nothing is sent and the event
  // fires with it. Fires when `bytes` may be reused: OK, CANCELLED (dropped), UNAVAILABLE (the edge is dead), or
  // DATA_LOSS (they came damaged however often they were sent; the edge lives). An announced frame is always sent
  // whole. Delivery is what Finish reports.
  Event Send(FrameId id, ConstBufferRef bytes, const Event& after) {
    return SendSummed(id, std::move(bytes), after, nullptr);
  }
  // The same for a frame that came, whole, over another edge: under the checksum that it came with, `sum` of its
  // Reception, which is there when `after` has fired with OK. Null: it is computed.
  virtual Event SendSummed(FrameId id, ConstBufferRef bytes, const Event& after,
                           std::shared_ptr<const FrameSum> sum) = 0;

  // Receives frame `id` into `into`, whose size must be the frame's (INVALID_ARGUMENT else). Before it is posted the
  // frame waits at its sender (or, small, in a bounded buffer here). Fires OK, once the bytes match the frame's
  // checksum; CANCELLED, UNAVAILABLE, or DATA_LOSS (as Send).
  virtual Reception Recv(FrameId id, BufferRef into) = 0;

  // This side sends no more frames of `job`. Fires OK when the peer has received all of them, UNAVAILABLE when the edge
  // died before, CANCELLED when either side dropped the job.
  virtual Event Finish(JobId job) = 0;

  // This side wants no more of `job`: its unmatched receives fire CANCELLED, sends not yet announced fire CANCELLED,
  // and its incoming frames are discarded until the peer's Finish. Idempotent; also before any frame of the job was
  // seen.
  virtual void Drop(JobId job) = 0;

  // OK while the peer can be reached.
  virtual absl::Status Health() const = 0;

  // The peer has opened its end too, and said so over this edge. Stays true when the edge dies.
  virtual bool Opened() const = 0;
};

// Opens edges of one process. Thread-safe.
class EdgeFactory {
 public:
  virtual ~EdgeFactory() = default;
  // What peers open edges to.
  virtual PeerId self() const = 0;
  // An edge to `peer`. Both sides open theirs; frames sent before the other side has opened wait. A new edge to the
  // same peer id is the same edge; UNAVAILABLE when it is dead.
  virtual absl::StatusOr<std::shared_ptr<Edge>> Open(const PeerId& peer) = 0;
  // Kills the edge to `peer`: everything pending fires UNAVAILABLE. Buffers may be freed when this returns.
  virtual void Close(const PeerId& peer) = 0;
};

}  // namespace runahead
