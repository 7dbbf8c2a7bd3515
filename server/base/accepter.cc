#include "server/base/accepter.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

// The descriptor is not valid where nobody was accepted: why is in errno.
NewConnection AcceptOne(const Descriptor& listener) {
  NewConnection connection;
  connection.peer.length = sizeof(connection.peer.storage);
  connection.socket = Descriptor(accept4(listener.get(), reinterpret_cast<sockaddr*>(&connection.peer.storage),
                                         &connection.peer.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  return connection;
}

}  // namespace

void Accepter::KeepSpare() {
  if (!spare_.valid()) spare_ = Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

absl::StatusOr<std::optional<NewConnection>> Accepter::Next(const Descriptor& listener) {
  KeepSpare();
  for (;;) {
    NewConnection connection = AcceptOne(listener);
    if (connection.socket.valid()) return connection;
    if (errno == EAGAIN) return std::nullopt;
    if (errno == EMFILE && spare_.valid()) {
      spare_.Close();
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return absl::ResourceExhaustedError(absl::StrCat("accepting a connection: ", std::strerror(errno)));
    }
    // Not this one connection but the listener itself: somebody has ended the socket.
    if (errno == EINVAL || errno == EBADF || errno == ENOTSOCK) {
      return absl::UnavailableError(absl::StrCat("accepting a connection: ", std::strerror(errno)));
    }
    // All else is about the one connection, which is gone already: the next.
  }
}

}  // namespace runahead
