// One UCX worker per process, driven by one thread: messages of a header and bytes to any peer, with the death of peers
// noticed. Edges and hand-off are built on it.
//
// Threads: UCX is called on the engine's progress thread only; everything else hands it commands. Handlers, `done` and
// `on_death` callbacks run on that thread: they must be short, must not block, and may call anything here but Close,
// SetHandler and Transport.
// Small bytes travel with their header (eager); large ones stay at the sender until the receiver gives them a place
// (rendezvous), so a receiver is never flooded.
// Death: a peer that was killed, closed its engine or was closed here is dead within a second; one that never answered
// (it died while the connection was made, or another process is at its address) after two. Its endpoint is closed by
// force, and only when UCX gave back every buffer do the `done` callbacks have run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "worker/link/edge.h"

namespace runahead {

struct UcxOptions {
  uint64_t incarnation = 0;
  std::string transports;          // as UCX_TLS takes them; empty: RDMA where it is, else TCP
  std::string host = "127.0.0.1";  // numeric address of this host at which peers reach it
};

// What a message is for. The engine keeps those up to kGoodbye to itself.
enum class UcxKind : uint16_t { kHello = 0, kHelloAnswer, kGoodbye, kEdgeFrame, kEdgeControl, kSlice, kVerdict };
inline constexpr size_t kUcxKinds = 7;

// Bytes up to this size travel with their header.
inline constexpr size_t kUcxEagerBytes = 8192;
// Longest header. UCX takes some 8,000 bytes on every transport.
inline constexpr size_t kUcxMaxHeader = 4096;

// A message's bytes, here (eager) or still at the sender. Any thread. Destroying it unaccepted lets the sender go.
class UcxPayload {
 public:
  virtual ~UcxPayload() = default;
  virtual size_t size() const = 0;
  // At most once. The sizes of `into` add up to size(); they are filled in order and held until `done` has run.
  virtual void Accept(std::vector<BufferRef> into, std::function<void(absl::Status)> done) = 0;
};

struct UcxMessage {
  uint64_t from = 0;  // the sender's incarnation
  std::string_view header;
  std::shared_ptr<UcxPayload> payload;  // never null; may be of size 0
};

// Thread-safe.
class UcxEngine {
 public:
  using Handler = std::function<void(const UcxMessage&)>;
  using Done = std::function<void(absl::Status)>;

  static absl::StatusOr<std::unique_ptr<UcxEngine>> Start(const UcxOptions& options);
  // Says goodbye to all peers, closes, and stops the thread. Everything under way is done with UNAVAILABLE before.
  ~UcxEngine();

  const PeerId& self() const;

  // Messages of `kind` from now on; none is being handled by the former handler when this returns. Messages without a
  // handler are discarded, so set handlers before self() is told to anyone.
  void SetHandler(UcxKind kind, Handler handler);

  // Makes sure that there is a connection to `peer` and that `on_death` runs once when it dies, before any other sign
  // of the death. A connection that cannot be made dies at once.
  void Connect(const PeerId& peer, Done on_death);

  // Sends to `peer`, connecting when there is no connection (also after a death: a new one is tried). `done` runs when
  // `bytes` may be reused: OK also when the receiver discarded them; UNAVAILABLE when the connection died.
  void Send(const PeerId& peer, UcxKind kind, std::string header, ConstBufferRef bytes, Done done);

  // Ends the connection to `peer`, at both ends. When this returns UCX holds no buffer of it.
  void Close(const PeerId& peer);

  // The transports of the connection ("posix/memory"); empty when there is none.
  std::string Transport(const PeerId& peer);

 private:
  class Impl;
  explicit UcxEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace runahead
