// Messages of a header and bytes to any peer process, with the death of peers noticed. Edges and hand-off are built on
// it. Implementation: our own over TCP (tcp/tcp_engine.h); tests decorate it.
//
// A peer is reached over one connection for each PeerKey: that of an edge's generation breaks alone, and is made once.
//
// Threads: an engine has one progress thread; everything else hands it commands. Handlers, `done` and `on_death`
// callbacks run on that thread: they must be short, must not block, and may call anything here but Close, CloseAll,
// Stop, SetHandler and Transport.
// Bytes are a transfer (transfer.h). Few of them travel with their header (eager); many stay at the sender
// until the receiver gives them a place, so a receiver is never flooded.
// A header comes as it was sent, or its connection dies. Bytes that come damaged are sent again. Death: a peer that was
// killed, closed its engine or was closed here is dead within a second; one that never answered (it died while the
// connection was made, or another process is at its address) after two. Only when nothing reads or writes a buffer any
// more does its `done` run.
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
#include "worker/link/transfer.h"
#include "worker/link/wire_time.h"

namespace runahead {

// What a message is for. The numbers travel: those that are left out had a meaning once, and are not used again.
enum class MessageKind : uint16_t {
  kEdgeFrame = 3,
  kEdgeControl = 4,
  kSlice = 5,
  kDeviceEdge = 7,
  kPrefixAsk = 8,  // a header alone, but answered as a transfer is
  kPrefixRows = 9,
};
inline constexpr MessageKind kFirstMessageKind = MessageKind::kEdgeFrame;
inline constexpr size_t kMessageKinds = 10;  // all are below it
// Messages of the other kinds are a header alone.
constexpr bool IsTransfer(MessageKind kind) {
  return kind == MessageKind::kEdgeFrame || kind == MessageKind::kSlice || kind == MessageKind::kPrefixAsk ||
         kind == MessageKind::kPrefixRows;
}

// Bytes up to this size travel with their header.
inline constexpr size_t kEagerBytes = 8192;
// Longest header.
inline constexpr size_t kMaxHeader = 4096;

// A transfer that came, whose bytes are here (eager) or still at the sender. Used by one thread at a time. Destroying
// it unanswered answers CANCELLED: nobody wants it.
class MessagePayload {
 public:
  virtual ~MessagePayload() = default;
  virtual size_t size() const = 0;
  // The sizes of `into` add up to size(). `done` runs when the bytes are all there and match their sum, or with why
  // they will not be: DATA_LOSS where they came damaged kTransferAttempts times, which the sender hears, too. After
  // that it may be called again, for bytes that are needed once more; all of it together is kTransferAttempts attempts.
  virtual void Accept(Inbound into, ReceiveDone done) = 0;
  // What the sender's `done` gets. Once; not while bytes are accepted.
  virtual void Answer(absl::StatusCode answer) = 0;
};

struct Message {
  PeerKey from;  // the sender
  std::string_view header;
  std::shared_ptr<MessagePayload> payload;  // null where the kind is no transfer; may be of size 0
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
  // Messages of one sender arrive in order; their large bytes do not. `done` runs when `bytes` may be reused: with the
  // receiver's answer, DATA_LOSS or CANCELLED among them; UNAVAILABLE when the connection died. Of a message without
  // bytes it runs with OK when it was sent.
  virtual void Send(const PeerId& peer, MessageKind kind, std::string header, Outbound bytes, Done done) = 0;

  // Ends this connection soon, where there is one, at both ends. Any thread, also in callbacks.
  virtual void Break(const PeerKey& peer, const absl::Status& why) = 0;

  // The same now. When this returns nothing holds a buffer of it.
  virtual void Close(const PeerKey& peer) = 0;

  // The same for all connections that `which`, which is short, says.
  virtual void CloseAll(const std::function<bool(const PeerKey&)>& which) = 0;

  // Ends all connections for good: none is made or taken any more, and everything is done with UNAVAILABLE. When this
  // returns nothing holds a buffer.
  virtual void Stop() = 0;

  // What the connection runs over and where to ("tcp 10.0.0.2:4711"); empty when there is none.
  virtual std::string Transport(const PeerId& peer) = 0;
};

}  // namespace runahead
