// Addresses as the system's socket calls take and give them: numeric hosts with ports.
#pragma once

#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"
#include "server/base/address.h"

namespace runahead {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// INVALID_ARGUMENT: the host is no IP address.
absl::StatusOr<SocketAddress> NumericSocketAddress(const HostPort& address);

// The host of an IPv4 or IPv6 address; empty for what is none.
std::string NumericHost(const sockaddr& address);

// The same of one who connects: IPv4 that arrives at an IPv6 socket is the same host as at one of its own.
std::string PeerHost(const SocketAddress& peer);

// Of an IPv4 or IPv6 address.
int PortOf(const sockaddr_storage& storage);

}  // namespace runahead
