// A network that a test can make stand still.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/mutex.h"

namespace runahead::testing {

// Forwards every connection to its port to `target`, "127.0.0.1:PORT". Thread-safe.
class TcpProxy {
 public:
  explicit TcpProxy(const std::string& target);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  const std::string& address() const { return address_; }

  // While stalled nothing is passed on, in either direction; nothing is lost either.
  void Stall(bool stalled) RUNAHEAD_EXCLUDES(mu_);
  // Resets all connections that there are, and what is on its way over them is lost; returns when that is done. New
  // ones are taken.
  void Cut() RUNAHEAD_EXCLUDES(mu_);

 private:
  // One direction of a connection.
  struct Way {
    int from;
    int to;
    std::string held;  // read from `from`, not yet taken by `to`
  };

  void Run() RUNAHEAD_EXCLUDES(mu_);
  void Accept();
  bool Forward(Way& way);
  void End(size_t pair);
  void Reset(size_t pair);
  void Wake();

  const uint16_t target_port_;
  std::string address_;
  int listener_ = -1;
  int wake_[2] = {-1, -1};
  Mutex mu_;
  bool stalled_ RUNAHEAD_GUARDED_BY(mu_) = false;
  bool stop_ RUNAHEAD_GUARDED_BY(mu_) = false;
  bool cut_ RUNAHEAD_GUARDED_BY(mu_) = false;  // it is asked for
  CondVar cut_done_;
  std::vector<Way> ways_;  // of the thread; in pairs, there and back
  std::thread thread_;
};

}  // namespace runahead::testing
