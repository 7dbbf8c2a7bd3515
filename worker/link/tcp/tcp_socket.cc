#include "worker/link/tcp/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/listen_error.h"
#include "server/base/socket_address.h"

namespace runahead {
namespace {

// A host that says nothing for so long is lost. The router's control stream notices a hung worker well before; this is
// for what it does not see. Above what a loaded machine keeps a living process waiting.
constexpr int kLostMillis = 6000;
constexpr int kKeepAliveSeconds = 2;
constexpr int kBacklog = 1024;

absl::StatusOr<Descriptor> NewSocket(int family) {
  Descriptor descriptor(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!descriptor.valid()) return ErrnoStatus(errno, "opening a socket for links");
  return descriptor;
}

}  // namespace

absl::Status ErrnoStatus(int error, const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

absl::StatusOr<TcpListener> ListenTcp(const HostPort& at) {
  RUNAHEAD_ASSIGN_OR_RETURN(SocketAddress socket, NumericSocketAddress(at));
  RUNAHEAD_ASSIGN_OR_RETURN(Descriptor descriptor, NewSocket(socket.storage.ss_family));
  const int on = 1;
  if (at.port > 0) setsockopt(descriptor.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  socklen_t length = socket.length;
  if (bind(descriptor.get(), socket.get(), socket.length) != 0 || listen(descriptor.get(), kBacklog) != 0 ||
      getsockname(descriptor.get(), reinterpret_cast<sockaddr*>(&socket.storage), &length) != 0) {
    if (at.port > 0) return ListenError("link_port", at);
    return ErrnoStatus(errno, absl::StrCat("listening for links at ", at.host, " (see link_host)"));
  }
  return TcpListener{std::move(descriptor), FormatHostPort({at.host, PortOf(socket.storage)})};
}

absl::StatusOr<Descriptor> ConnectTcp(const std::string& address) {
  const absl::StatusOr<HostPort> at = ParseHostPort(address);  // which may come from anyone
  if (!at.ok()) return absl::InvalidArgumentError("the link address is damaged or none of this version");
  RUNAHEAD_ASSIGN_OR_RETURN(const SocketAddress socket, NumericSocketAddress(*at));
  RUNAHEAD_ASSIGN_OR_RETURN(Descriptor descriptor, NewSocket(socket.storage.ss_family));
  TuneTcp(descriptor);
  if (connect(descriptor.get(), socket.get(), socket.length) != 0 && errno != EINPROGRESS) {
    return ErrnoStatus(errno, absl::StrCat("connecting to ", address));
  }
  return descriptor;
}

void TuneTcp(const Descriptor& connection) {
  const auto set = [fd = connection.get()](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveSeconds);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kLostMillis);
}

}  // namespace runahead
