// A client of an HTTP port that says exactly what a test wants, byte by byte.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "server/base/address.h"
#include "server/base/descriptor.h"
#include "tests/testing/patience.h"

namespace runahead::testing {

class RawHttp {
 public:
  // `receive_buffer`: bytes that the system keeps for it; 0: as many as it likes.
  explicit RawHttp(const std::string& address, int receive_buffer = 0) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    timeval patience = {};
    patience.tv_sec = absl::ToInt64Seconds(Patience(absl::Seconds(20)));
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (receive_buffer > 0) setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(ParseHostPort(address)->port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  }

  void Send(absl::string_view text) {
    EXPECT_EQ(send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }

  // Reads until `end` has come behind what was read before: all that is new, up to and with it. Without it, what had
  // come when the other end closed, or patience ran out.
  std::string ReadUntil(const std::string& end) {
    size_t found;
    while ((found = unread_.find(end)) == std::string::npos && Receive()) {
    }
    const size_t size = found == std::string::npos ? unread_.size() : found + end.size();
    std::string text = unread_.substr(0, size);
    unread_.erase(0, size);
    return text;
  }
  // All until the other end closes.
  std::string ReadToEnd() {
    while (Receive()) {
    }
    return std::move(unread_);
  }
  // Head and body of an answer that says its length.
  std::string ReadAnswer() {
    std::string head = ReadUntil("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    if (at == std::string::npos) return head;
    const size_t length = std::stoul(head.substr(at + 16));
    while (unread_.size() < length && Receive()) {
    }
    head += unread_.substr(0, length);
    unread_.erase(0, length);
    return head;
  }
  void Close() { socket_.Close(); }
  // Sends nothing more, and still reads.
  void EndSending() { EXPECT_EQ(shutdown(socket_.get(), SHUT_WR), 0); }
  int port() const {
    sockaddr_in own = {};
    socklen_t size = sizeof own;
    EXPECT_EQ(getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
    return ntohs(own.sin_port);
  }

 private:
  bool Receive() {
    char bytes[4096];
    const ssize_t got = recv(socket_.get(), bytes, sizeof bytes, 0);
    if (got > 0) unread_.append(bytes, static_cast<size_t>(got));
    return got > 0;
  }

  Descriptor socket_;
  std::string unread_;
};

}  // namespace runahead::testing
