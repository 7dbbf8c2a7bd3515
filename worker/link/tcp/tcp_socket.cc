#include "worker/link/tcp/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/listen_error.h"
#include "worker/link/link_address.h"

namespace runahead {
namespace {

// A host that says nothing for so long is lost. The router's control stream notices a hung worker well before; this is
// for what it does not see. Above what a loaded machine keeps a living process waiting.
constexpr int kLostMillis = 6000;
constexpr int kKeepAliveSeconds = 2;
constexpr int kBacklog = 1024;

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
  RUNAHEAD_ASSIGN_OR_RETURN(const SocketAddress socket, ParseLinkAddress(address));
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
      return absl::ResourceExhaustedError(absl::StrCat("accepting a connection: ", std::strerror(errno)));
    }
    // Not this one connection but the listener itself: somebody ended the socket.
    if (errno == EINVAL || errno == EBADF) return ErrnoStatus(errno, "accepting a connection");
    // All else is about the one connection, which is gone already: the next.
  }
}

}  // namespace runahead
