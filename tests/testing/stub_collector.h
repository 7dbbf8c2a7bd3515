// A collector of OpenTelemetry, as far as it takes traces over HTTP: it keeps what comes.
#pragma once

#include <httplib.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/mutex.h"

namespace runahead::testing {

// As OTLP has it.
struct CollectedSpan {
  std::string service, instance;  // of its resource
  std::string trace_id, id, parent_id, name;
  std::map<std::string, std::string> attributes;  // numbers as they are written
};

// Thread-safe.
class StubCollector {
 public:
  // What it answers to the post of this index, from 0, with this body. What counts posts must bear one that is
  // repeated.
  using Answering = std::function<void(size_t, const std::string&, httplib::Response&)>;

  explicit StubCollector(Answering answering = nullptr);
  ~StubCollector();

  // From now on its port refuses connections, and is nobody else's while this lives. By the owner only.
  void Close();

  int port() const { return port_; }
  std::string url() const;
  std::vector<httplib::Request> posts() const;
  // All spans of all posts; a failure of the test where one is no request with spans.
  std::vector<CollectedSpan> spans() const;

 private:
  const Answering answering_;
  mutable Mutex mu_;
  std::vector<httplib::Request> posts_ RUNAHEAD_GUARDED_BY(mu_);
  httplib::Server server_;
  int held_ = -1;  // a socket that is bound to the port and does not listen
  int port_ = 0;
  std::thread thread_;
};

}  // namespace runahead::testing
