#include "worker/link/tcp/tcp_stream.h"

#include <sys/socket.h>

#include <cerrno>

#include "worker/link/tcp/tcp_socket.h"

namespace runahead {

absl::StatusOr<size_t> ReadSocket(const Descriptor& socket, const iovec* pieces, size_t count) {
  for (;;) {
    const ssize_t got = readv(socket.get(), pieces, static_cast<int>(count));
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) return absl::UnavailableError("the peer closed the connection");
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) return ErrnoStatus(errno, "the peer is gone");
  }
}

absl::StatusOr<size_t> WriteSocket(const Descriptor& socket, const iovec* pieces, size_t count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces);  // sendmsg only reads them
  message.msg_iovlen = count;
  for (;;) {
    const ssize_t sent = sendmsg(socket.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) return ErrnoStatus(errno, "the peer is gone");
  }
}

void CloseSocket(Descriptor& socket) {
  shutdown(socket.get(), SHUT_RDWR);  // also where a child of this process still has the descriptor
  socket = Descriptor();
}

absl::StatusOr<size_t> PlainStream::Read(iovec* pieces, size_t count, bool from_socket) {
  if (!from_socket) return 0;
  return ReadSocket(socket_, pieces, count);
}

absl::StatusOr<size_t> PlainStream::Write(const iovec* pieces, size_t count) {
  return WriteSocket(socket_, pieces, count);
}

void PlainStream::Close() {
  CloseSocket(socket_);
}

}  // namespace runahead
