// A client's way to a port of this process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/descriptor.h"
#include "server/base/socket_address.h"

namespace runahead {

// What a listening socket has accepted.
struct Acceptance {
  uint64_t all = 0;       // connections so far
  bool expected = false;  // the one that was announced last is among them
};

// How a probe speaks with who accepts its connections. Called on the probe's thread.
struct AskedListener {
  // Told where the connection that is now made comes from.
  std::function<void(const SocketAddress& from)> announce;
  std::function<Acceptance()> acceptance;
};

// Connects as any client does, and looks whether HTTP/2 answers: gRPC says its settings to whoever comes. Under TLS it
// says hello, and looks whether the server does: whose certificate is no question here. It has its socket from the
// start, so that it needs no descriptor when none is left. Where others fill the system's queue before the port, it
// tries again and again to come in. Used by one thread.
class PortProbe {
 public:
  // `to` is the address of a listening socket of this process; where that is all addresses, the loopback one is asked.
  // UNAVAILABLE when there is no socket.
  static absl::StatusOr<std::unique_ptr<PortProbe>> Create(const SocketAddress& to, AskedListener listener,
                                                           bool tls = false);

  // UNAVAILABLE, saying how far it came within `timeout`: nobody was accepted, or it was, and had no answer.
  // RESOURCE_EXHAUSTED: there is no port to ask from, or others were accepted in its place all the time.
  absl::Status Ask(absl::Duration timeout);

 private:
  PortProbe(Descriptor socket, const SocketAddress& from, const SocketAddress& to, AskedListener listener, bool tls);
  absl::Status ConnectAndRead(absl::Time until);
  absl::Status Connect(absl::Time until);
  absl::Status TryToConnect(absl::Time until);
  absl::Status SayTlsHello();
  absl::Status ReadGreeting(absl::Time until);

  const Descriptor socket_;
  const SocketAddress from_;  // with port 0
  const SocketAddress to_;
  const AskedListener listener_;
  const bool tls_;
};

}  // namespace runahead
