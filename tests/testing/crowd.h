// Many connections to one port.
#pragma once

#include <netinet/in.h>

#include <string>
#include <thread>
#include <vector>

namespace runahead::testing {

// How many descriptors this process may have: it raises its own limit as far as it can.
int RaiseOwnLimit();

// Connections of this process that say nothing, unless Say() is called. Used by one thread. Descriptors below 1024 are
// left to others.
class Crowd {
 public:
  // To "127.0.0.1:4711". Waits until each is connected or refused; not long for those that the system lets wait.
  Crowd(const std::string& address, int count);
  ~Crowd();
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  // Sends it over each connection that is still open.
  void Say(const std::string& text) const;
  // How many the other side has not closed.
  int Open() const;
  // Connects anew in place of each that the other side has closed.
  void Renew();

 private:
  int Connect() const;

  sockaddr_in to_ = {};
  std::vector<int> sockets_;
};

// A crowd that stays: a thread of its own renews it, over and over.
class StandingCrowd {
 public:
  StandingCrowd(const std::string& address, int count);

 private:
  Crowd crowd_;  // the thread's
  std::jthread thread_;
};

}  // namespace runahead::testing
