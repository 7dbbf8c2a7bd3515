// Non-blocking TCP sockets as the engine wants them: no delay, and a lost host is noticed.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/base/address.h"
#include "server/base/descriptor.h"

namespace runahead {

struct TcpListener {
  Descriptor descriptor;
  std::string address;  // what others connect to: "10.0.0.1:4711", "[::1]:4711"
};

// At a numeric address; port 0 takes a free one. Another can also be had again at once, while the system still keeps
// connections of who listened there before. Errors name the worker's option.
absl::StatusOr<TcpListener> ListenTcp(const HostPort& at);

// A connection being made to what a TcpListener's address says. Refusals show when it is used. INVALID_ARGUMENT: it is
// no such address.
absl::StatusOr<Descriptor> ConnectTcp(const std::string& address);

// What links set of a socket. What cannot be set only makes it slower, or a loss noticed later.
void TuneTcp(const Descriptor& connection);

// UNAVAILABLE, with errno's words for `what` was tried.
absl::Status ErrnoStatus(int error, const std::string& what);

}  // namespace runahead
