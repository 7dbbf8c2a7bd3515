// Messages of a header and bytes to any peer process, with the death of peers noticed. Edges and hand-off are built on
// it. Implementations: our own over TCP (the default), and UCX for RDMA networks; message_engine_factory.h makes one.
//
// A peer is reached over one connection for each PeerKey: that of an edge's generation breaks alone, and is made once.
//
// Threads: an engine has one progress thread; everything else hands it commands. Handlers, `done` and `on_death`
// callbacks run on that thread: they must be short, must not block, and may call anything here but Close, SetHandler
// and Transport.
// Small bytes travel with their header (eager); large ones stay at the sender until the receiver gives them a place
// (rendezvous), so a receiver is never flooded.
// A header comes as it was sent, or its connection dies. Bytes may come damaged: who sends them has a checksum for
// them. Death: a peer that was killed, closed its engine or was closed here is dead within a second; one that never
// answered (it died while the connection was made, or another process is at its address) after two. Only when nothing
// reads or writes a buffer any more does its `done` run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/buffer.h"
#include "worker/link/edge.h"
#include "worker/link/wire_time.h"

namespace runahead {

// What a message is for. Engines keep those up to kGoodbye to themselves.
enum class MessageKind : uint16_t {
  kHello = 0,
  kHelloAnswer,
  kGoodbye,
  kEdgeFrame,
  kEdgeControl,
  kSlice,
  kVerdict,
  kDeviceEdge,
  kEdgeOffer,
  kEdgeBytes,
};
inline constexpr size_t kMessageKinds = 10;

// Bytes up to this size travel with their header.
inline constexpr size_t kEagerBytes = 8192;
// Longest header. UCX takes some 8,000 bytes on every transport.
inline constexpr size_t kMaxHeader = 4096;

// A message's bytes, here (eager) or still at the sender. Any thread. Destroying it unaccepted lets the sender go.
class MessagePayload {
 public:
  virtual ~MessagePayload() = default;
  virtual size_t size() const = 0;
  // At most once. The sizes of `into` add up to size(); they are filled in order and held until `done` has run.
  virtual void Accept(std::vector<BufferRef> into, ReceiveDone done) = 0;
};

struct Message {
  PeerKey from;  // the sender
  std::string_view header;
  std::shared_ptr<MessagePayload> payload;  // never null; may be of size 0
};

// Thread-safe.
class MessageEngine {
 public:
  using Handler = std::function<void(const Message&)>;
  using Done = std::function<void(absl::Status)>;

  // Ends all connections and stops the thread. Everything under way is done with UNAVAILABLE before.
  virtual ~MessageEngine() = default;

  virtual const PeerId& self() const = 0;

  // Messages of `kind` from now on; none is being handled by the former handler when this returns. Messages without a
  // handler are discarded, so set handlers before self() is told to anyone.
  virtual void SetHandler(MessageKind kind, Handler handler) = 0;

  // Makes sure that there is a connection to `peer` and that `on_death` runs once when it dies, before any other sign
  // of the death. A connection that cannot be made dies at once.
  virtual void Connect(const PeerId& peer, Done on_death) = 0;

  // Sends to `peer`, connecting when there is no connection (for hand-off also after a death: a new one is tried).
  // Messages of one sender arrive in order; their large bytes do not. `done` runs when `bytes` may be reused: OK also
  // when the receiver discarded them; UNAVAILABLE when the connection died.
  virtual void Send(const PeerId& peer, MessageKind kind, std::string header, ConstBufferRef bytes, Done done) = 0;

  // Ends this connection, where there is one, at both ends. When this returns nothing holds a buffer of it.
  virtual void Close(const PeerKey& peer) = 0;

  // The same for all connections to a process in that epoch.
  virtual void CloseAll(uint64_t incarnation, uint32_t epoch) = 0;

  // Ends all connections for good: none is made or taken any more, and everything is done with UNAVAILABLE. When this
  // returns nothing holds a buffer.
  virtual void Stop() = 0;

  // What the connection runs over and where to ("tcp 10.0.0.2:4711", "ucx 10.0.0.2:4711"); empty when there is none.
  virtual std::string Transport(const PeerId& peer) = 0;
};

}  // namespace runahead
