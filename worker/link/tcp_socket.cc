#include "worker/link/tcp_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"

namespace runahead {
namespace {

// A host that says nothing for so long is lost. The router's control stream notices a hung worker well before; this is
// for what it does not see. Above what a loaded machine keeps a living process waiting.
constexpr int kLostMillis = 6000;
constexpr int kKeepAliveSeconds = 2;
constexpr int kBacklog = 1024;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

absl::StatusOr<SocketAddress> Numeric(const HostPort& address) {
  SocketAddress socket;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&socket.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&socket.storage);
  if (inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(address.port));
    socket.length = sizeof(*v4);
  } else if (inet_pton(AF_INET6, address.host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(address.port));
    socket.length = sizeof(*v6);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("\"", absl::CHexEscape(address.host), "\" is no numeric address"));
  }
  return socket;
}

int PortOf(const sockaddr_storage& storage) {
  return ntohs(storage.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in*>(&storage)->sin_port
                                            : reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
}

// What cannot be set only makes it slower, or a loss noticed later.
void Tune(int fd) {
  const auto set = [fd](int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveSeconds);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kLostMillis);
}

absl::StatusOr<Descriptor> NewSocket(int family) {
  Descriptor descriptor(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!descriptor.valid()) return ErrnoStatus(errno, "opening a socket for a link");
  return descriptor;
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

absl::Status ErrnoStatus(int error, const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

absl::StatusOr<TcpListener> ListenTcp(const std::string& host) {
  RUNAHEAD_ASSIGN_OR_RETURN(SocketAddress socket, Numeric({host, 0}));
  RUNAHEAD_ASSIGN_OR_RETURN(Descriptor descriptor, NewSocket(socket.storage.ss_family));
  socklen_t length = socket.length;
  if (bind(descriptor.get(), socket.get(), socket.length) != 0 || listen(descriptor.get(), kBacklog) != 0 ||
      getsockname(descriptor.get(), socket.get(), &length) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listening for links at ", host, " (see link_host)"));
  }
  return TcpListener{std::move(descriptor), FormatHostPort({host, PortOf(socket.storage)})};
}

absl::StatusOr<Descriptor> ConnectTcp(const std::string& address) {
  const absl::StatusOr<HostPort> host_port = ParseHostPort(address);
  if (!host_port.ok()) return absl::InvalidArgumentError("the link address is damaged or none of this version");
  RUNAHEAD_ASSIGN_OR_RETURN(SocketAddress socket, Numeric(*host_port));
  RUNAHEAD_ASSIGN_OR_RETURN(Descriptor descriptor, NewSocket(socket.storage.ss_family));
  Tune(descriptor.get());
  if (connect(descriptor.get(), socket.get(), socket.length) != 0 && errno != EINPROGRESS) {
    return ErrnoStatus(errno, absl::StrCat("connecting to ", address));
  }
  return descriptor;
}

absl::StatusOr<Descriptor> AcceptTcp(const Descriptor& listener) {
  for (;;) {
    Descriptor descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (descriptor.valid()) {
      Tune(descriptor.get());
      return descriptor;
    }
    if (errno == EAGAIN) return descriptor;
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return absl::ResourceExhaustedError(absl::StrCat("accepting a link: ", std::strerror(errno)));
    }
    // All else is about the one connection, which is gone already: the next.
  }
}

}  // namespace runahead
