// An HTTP server whose answers the test writes, byte by byte.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "kernels/base/mutex.h"

namespace runahead::testing {

class ScriptedHttp {
 public:
  // One connection, which the server closes when the script says so or the client has gone.
  class Connection {
   public:
    explicit Connection(int socket) : socket_(socket) {}
    // False where the client has gone.
    bool Write(const std::string& bytes) {
      size_t sent = 0;
      while (sent < bytes.size()) {
        const ssize_t wrote = send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
        if (wrote <= 0) return false;
        sent += static_cast<size_t>(wrote);
      }
      return true;
    }
    // Head and body of the next request; empty where the client has gone.
    std::string ReadRequest() {
      size_t head = 0;
      while ((head = unread_.find("\r\n\r\n")) == std::string::npos) {
        if (!Receive()) return "";
      }
      const size_t at = unread_.find("Content-Length: ");
      const size_t size = head + 4 + (at < head ? std::stoul(unread_.substr(at + 16)) : 0);
      while (unread_.size() < size) {
        if (!Receive()) return "";
      }
      const std::string request = unread_.substr(0, size);
      unread_.erase(0, size);
      return request;
    }

   private:
    bool Receive() {
      char bytes[4096];
      const ssize_t got = recv(socket_, bytes, sizeof bytes, 0);
      if (got > 0) unread_.append(bytes, static_cast<size_t>(got));
      return got > 0;
    }

    const int socket_;
    std::string unread_;
  };

  // Runs on a thread of its connection, for each request; false: the connection is closed.
  using Script = std::function<bool(const std::string& request, Connection&)>;

  explicit ScriptedHttp(Script script) : script_(std::move(script)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 64), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~ScriptedHttp() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    {
      MutexLock lock(mu_);
      for (const int open : open_) shutdown(open, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
    for (const int open : open_) close(open);
    close(listener_);
  }
  ScriptedHttp(const ScriptedHttp&) = delete;
  ScriptedHttp& operator=(const ScriptedHttp&) = delete;

  int port() const { return port_; }
  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_, "/v1"); }
  int connections() const {
    MutexLock lock(mu_);
    return static_cast<int>(open_.size());
  }

 private:
  void Accept() {
    for (int client; (client = accept(listener_, nullptr, nullptr)) >= 0;) {
      {
        MutexLock lock(mu_);
        open_.push_back(client);
      }
      threads_.emplace_back([this, client] {
        Connection connection(client);
        for (std::string request; !(request = connection.ReadRequest()).empty();) {
          if (!script_(request, connection)) break;
        }
        shutdown(client, SHUT_RDWR);
      });
    }
  }

  const Script script_;
  const int listener_;
  int port_ = 0;
  mutable Mutex mu_;
  std::vector<int> open_ RUNAHEAD_GUARDED_BY(mu_);  // all that there were; closed at the end
  std::vector<std::thread> threads_;                // of the acceptor until it has ended
  std::thread acceptor_;
};

inline constexpr char kEventsHead[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";

// `text` as one chunk of a body.
inline std::string Chunk(const std::string& text) {
  return absl::StrFormat("%x\r\n%s\r\n", text.size(), text);
}
inline constexpr char kLastChunk[] = "0\r\n\r\n";

// A whole answer that says its length.
inline std::string HttpAnswer(int status, const std::string& type, const std::string& body) {
  return absl::StrCat("HTTP/1.1 ", status, " Word\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(),
                      "\r\n\r\n", body);
}

}  // namespace runahead::testing
