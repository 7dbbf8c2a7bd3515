// A stranger at a TCP port, who says what he likes.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>

#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "tests/testing/patience.h"

namespace runahead::testing {

// Blocking, on loopback.
class RawSocket {
 public:
  // Connected to "127.0.0.1:port".
  explicit RawSocket(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(ParseHostPort(address)->port));
    RUNAHEAD_CHECK(fd_ >= 0 && connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0);
    const timeval patience = absl::ToTimeval(LongestWait());
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~RawSocket() { close(fd_); }
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;

  // What the other end will not take any more is lost.
  void Say(std::string_view bytes) { (void)!send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // The next `size` bytes; less when the other end closes before.
  std::string Hear(size_t size) {
    std::string bytes(size, '\0');
    const ssize_t got = recv(fd_, bytes.data(), size, MSG_WAITALL);
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }
  // Whether the other end closed, within the time that Hear waits.
  bool Closed() {
    char byte;
    ssize_t got;
    while ((got = recv(fd_, &byte, 1, 0)) > 0) {
    }
    return got == 0 || errno == ECONNRESET;
  }

 private:
  const int fd_;
};

}  // namespace runahead::testing
