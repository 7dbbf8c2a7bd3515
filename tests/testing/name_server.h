// A name server for SRV records that a test writes.
#pragma once

#include <map>
#include <set>
#include <string>
#include <thread>

#include "kernels/base/mutex.h"

namespace runahead::testing {

// Answers over UDP and TCP on one free port of 127.0.0.1. A name that it was not given does not exist. Thread-safe.
class NameServer {
 public:
  NameServer();
  ~NameServer();
  NameServer(const NameServer&) = delete;
  NameServer& operator=(const NameServer&) = delete;

  const std::string& address() const { return address_; }  // host:port

  // `targets` ("host:port") are what `service` has from now on; none: the name is there without records.
  void Set(const std::string& service, std::set<std::string> targets) RUNAHEAD_EXCLUDES(mu_);
  // Fails all questions (SERVFAIL) from now on, or answers them again.
  void Fail(bool fails) RUNAHEAD_EXCLUDES(mu_);
  // Questions of this service so far.
  int asked(const std::string& service) const RUNAHEAD_EXCLUDES(mu_);

 private:
  void Run() RUNAHEAD_EXCLUDES(mu_);
  void AnswerTcp() RUNAHEAD_EXCLUDES(mu_);
  std::string AnswerTo(const std::string& question, size_t longest) RUNAHEAD_EXCLUDES(mu_);

  int udp_, tcp_, stop_;
  std::string address_;
  mutable Mutex mu_;
  std::map<std::string, std::set<std::string>> records_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<std::string, int> asked_ RUNAHEAD_GUARDED_BY(mu_);
  bool fails_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead::testing
