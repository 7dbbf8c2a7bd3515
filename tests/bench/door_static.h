// The least that HTTP costs: a server of one thread that reads no request, and sends each client what the door sends
// it, by as many calls of the system.
#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/bench/door_clients.h"
#include "tests/bench/door_process.h"

namespace runahead {

// What the door sends of an answer of kProbeTokens, text by text.
inline std::vector<std::string> StaticTexts() {
  const auto chunk = [](absl::string_view delta) {
    const std::string event = absl::StrCat(
        "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\",",
        "\"created\":1700000000,\"model\":\"instant\",\"choices\":[{\"index\":0,\"delta\":{", delta,
        "},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    return absl::StrCat(absl::Hex(event.size()), "\r\n", event, "\r\n");
  };
  std::vector<std::string> texts = {
      absl::StrCat("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n",
                   "Transfer-Encoding: chunked\r\n\r\n", chunk("\"role\":\"assistant\",\"content\":\"\""))};
  for (int i = 0; i < kProbeTokens; ++i) texts.push_back(chunk("\"content\":\" word\""));
  texts.push_back(chunk(""));
  texts.push_back("e\r\ndata: [DONE]\n\n\r\n");
  texts.push_back("0\r\n\r\n");
  return texts;
}

// Says its port on a line, and serves until it is killed. A request comes in one piece: so HttpClients sends them.
inline int StaticServer() {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listening, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listening, SOMAXCONN) != 0 ||
      getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    Die("cannot listen");
  }
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  const auto watch = [epoll](int fd) {
    epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  };
  watch(listening);
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  const std::vector<std::string> texts = StaticTexts();
  while (true) {
    epoll_event events[256];
    const int count = epoll_wait(epoll, events, 256, -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listening) {
        const int client = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
        const int on = 1;
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        watch(client);
        continue;
      }
      char buffer[4096];
      if (recv(fd, buffer, sizeof buffer, 0) <= 0) {
        close(fd);
        continue;
      }
      for (const std::string& text : texts) send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    }
  }
}

}  // namespace runahead
