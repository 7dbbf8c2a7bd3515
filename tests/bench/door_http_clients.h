// Clients over HTTP: one thread, which waits for all of them.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/base/monotonic.h"
#include "tests/bench/door_clients.h"
#include "tests/bench/door_process.h"

namespace runahead {

class HttpClients {
 public:
  // `receive_buffer`: of the sockets, in bytes; 0: the system's own.
  HttpClients(int port, int most, int receive_buffer = 0) : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < most; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (receive_buffer > 0) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
      if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) Die("cannot connect");
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      fcntl(fd, F_SETFL, O_NONBLOCK);
      epoll_event event = {.events = EPOLLIN, .data = {.u32 = static_cast<uint32_t>(i)}};
      epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
      clients_.push_back({.fd = fd});
    }
  }
  ~HttpClients() {
    for (const Client& client : clients_) close(client.fd);
    close(epoll_);
  }
  HttpClients(const HttpClients&) = delete;
  HttpClients& operator=(const HttpClients&) = delete;

  void Ask(const Wanted& wanted) {
    const std::string seed = wanted.pace_ms > 0 ? absl::StrCat(",\"seed\":", wanted.pace_ms) : "";
    const std::string body = absl::StrCat("{\"messages\":[{\"role\":\"user\",\"content\":\"Say something.\"}],",
                                          "\"stream\":true,\"max_tokens\":", wanted.tokens, seed, "}");
    const std::string request =
        absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n",
                     "Content-Length: ", body.size(), "\r\n\r\n", body);
    for (int i = 0; i < wanted.streams; ++i) {
      Client& client = clients_[static_cast<size_t>(i)];
      client.began = MonotonicNow();
      client.spoke = client.done = false;
      if (send(client.fd, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
        Die("cannot send a request");
      }
    }
  }

  Came Run(const Wanted& wanted) {
    Came came;
    came_ = &came;
    const absl::Time began = MonotonicNow();
    Ask(wanted);
    int left = wanted.streams;
    while (left > 0) {
      epoll_event events[256];
      const int count = epoll_wait(epoll_, events, 256, 60000);
      if (count == 0) Die("nothing came for a minute");
      for (int i = 0; i < count; ++i) {
        Client& client = clients_[events[i].data.u32];
        const bool had = wanted.until_first ? client.spoke : client.done;
        Read(client);
        if (!had && (wanted.until_first ? client.spoke : client.done)) --left;
      }
    }
    came.took = MonotonicNow() - began;
    return came;
  }

 private:
  struct Client {
    int fd = -1;
    absl::Time began = {};
    bool spoke = false, done = false;
    std::string line = {};  // that has not ended
  };

  void Read(Client& client) {
    const ssize_t size = recv(client.fd, buffer_, sizeof buffer_, 0);
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) Die("a connection was closed");
    absl::string_view text(buffer_, static_cast<size_t>(size));
    while (true) {
      const size_t end = text.find('\n');
      if (end == text.npos) break;
      const absl::string_view rest = text.substr(0, end);
      text.remove_prefix(end + 1);
      if (client.line.empty()) {
        Line(client, rest);
      } else {
        client.line.append(rest.data(), rest.size());
        Line(client, client.line);
        client.line.clear();
      }
    }
    client.line.append(text.data(), text.size());
  }

  void Line(Client& client, absl::string_view line) {
    if (line == "0\r") {
      client.done = true;
    } else if (line.find("\"delta\":{\"content\":\"") != line.npos) {
      ++came_->tokens;
      if (!client.spoke) came_->ttfts.push_back(MonotonicNow() - client.began);
      client.spoke = true;
    } else if (line.find("\"error\":") != line.npos) {
      Die(std::string(line));
    }
  }

  const int epoll_;
  std::vector<Client> clients_;
  Came* came_ = nullptr;
  char buffer_[64 << 10];
};

}  // namespace runahead
