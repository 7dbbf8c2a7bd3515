// One HTTP request and its answer over a connection that never blocks.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "server/base/descriptor.h"

namespace runahead {

// Used by one thread.
class HttpConnection {
 public:
  enum class State { kReading, kAsked, kAnswering, kEnded };

  // `host` is where it comes from. The whole request is to be here by `until`.
  HttpConnection(uint64_t id, Descriptor socket, std::string host, absl::Time until);

  uint64_t id() const { return id_; }
  const std::string& host() const { return host_; }
  State state() const { return state_; }
  int socket() const { return socket_.get(); }
  // Until when the peer may take; infinite while it waits for us.
  absl::Time until() const { return until_; }
  // What poll() is to wait for.
  short events() const;

  // Reads what is there: kAsked when the request is whole, kEnded when the peer is gone, or says too much.
  void Read();
  // The request that was read, up to and with its empty line.
  const std::string& request() const { return request_; }
  // Sends `answer`, which is to be taken by `until`; then the connection is kEnded.
  void Answer(std::string answer, absl::Time until);
  // Goes on sending.
  void Write();

 private:
  const uint64_t id_;
  const Descriptor socket_;
  const std::string host_;
  absl::Time until_;
  State state_ = State::kReading;
  std::string request_;
  std::string answer_;
  size_t sent_ = 0;
};

}  // namespace runahead
