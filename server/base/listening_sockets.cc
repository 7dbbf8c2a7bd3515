#include "server/base/listening_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/listen_error.h"

namespace runahead {
namespace {

// A free port of the first address may be taken at the second.
constexpr int kTriesForAPort = 16;

void SetPort(SocketAddress& address, int port) {
  const auto in_order = htons(static_cast<uint16_t>(port));
  if (address.storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = in_order;
  } else {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = in_order;
  }
}

// The reason why not is in errno.
Descriptor ListenAt(const SocketAddress& at) {
  Descriptor socket(::socket(at.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return socket;
  const int on = 1, off = 0;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // IPv4 arrives at "::" as well.
  if (at.storage.ss_family == AF_INET6) setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(socket.get(), at.get(), at.length) == 0 && listen(socket.get(), SOMAXCONN) == 0) return socket;
  const int error = errno;
  socket.Close();
  errno = error;
  return socket;
}

absl::StatusOr<std::vector<SocketAddress>> AddressesOf(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return absl::NotFoundError(gai_strerror(error));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.length = each->ai_addrlen;
  }
  freeaddrinfo(found);
  return addresses;
}

// A name may have an address of a family that the machine does not speak: another one of the name will do.
bool IsNotHere(int error) {
  return error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
}

// Listens at all `addresses`, at `port`. What is not here is left out. Empty: `why` says why not.
std::vector<Descriptor> ListenAtAll(std::vector<SocketAddress> addresses, int port, int& why) {
  std::vector<Descriptor> sockets;
  for (SocketAddress& at : addresses) {
    if (port == 0 && !sockets.empty()) port = PortOf(OwnAddress(sockets.front()).storage);
    SetPort(at, port);
    Descriptor socket = ListenAt(at);
    if (!socket.valid()) {
      why = errno;
      if (IsNotHere(why)) continue;
      return {};
    }
    sockets.push_back(std::move(socket));
  }
  return sockets;
}

}  // namespace

SocketAddress OwnAddress(const Descriptor& socket) {
  SocketAddress own;
  own.length = sizeof(own.storage);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.length) != 0) return {};
  return own;
}

absl::StatusOr<ListeningSockets> ListenOn(absl::string_view option, const HostPort& address) {
  // Both families first; IPv4 alone where the machine has no other.
  const bool everywhere = address.host == "0.0.0.0" || address.host == "::";
  std::vector<std::string> hosts = {address.host};
  if (everywhere) hosts = {"::", "0.0.0.0"};
  int why = EADDRNOTAVAIL;
  for (const std::string& host : hosts) {
    const absl::StatusOr<std::vector<SocketAddress>> addresses = AddressesOf(host);
    if (!addresses.ok()) return ListenError(option, address, std::string(addresses.status().message()));
    for (int i = 0; i < (address.port == 0 ? kTriesForAPort : 1); ++i) {
      std::vector<Descriptor> sockets = ListenAtAll(*addresses, address.port, why);
      if (!sockets.empty()) {
        const int port = PortOf(OwnAddress(sockets.front()).storage);
        return ListeningSockets{std::move(sockets), {address.host, port}};
      }
      if (why != EADDRINUSE) break;
    }
    if (!IsNotHere(why)) break;
  }
  return ListenError(option, address, std::strerror(why));
}

}  // namespace runahead
