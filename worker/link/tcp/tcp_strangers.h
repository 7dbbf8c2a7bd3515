// Who has connected to the TCP engine and has not proved who it is.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/container/flat_hash_map.h"

namespace runahead {

// Their connections by id, which grows with each. Used by one thread.
class TcpStrangers {
 public:
  using Clock = std::chrono::steady_clock;

  void Add(uint64_t id, std::string host, Clock::time_point now);
  // It has said hello, and would prove it next.
  void Greeted(uint64_t id);
  // Nothing happens where it is none of them.
  void Remove(uint64_t id);
  // Where it comes from; empty where it is none of them.
  std::string HostOf(uint64_t id) const;

  bool empty() const { return strangers_.empty(); }
  size_t size() const { return strangers_.size(); }

  struct Stranger {
    uint64_t id = 0;
    std::string host;
    Clock::time_point since;
    bool greeted = false;
  };
  // Who goes first where another needs the place: of the host with the most strangers the oldest one that has said
  // nothing, or else its oldest one. So a crowd from one host takes places from itself alone, and a peer on that host
  // goes last once it has said hello. There must be a stranger.
  const Stranger& First() const;

 private:
  std::map<uint64_t, Stranger> strangers_;
  absl::flat_hash_map<std::string, size_t> of_host_;
};

}  // namespace runahead
