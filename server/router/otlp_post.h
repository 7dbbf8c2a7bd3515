// Hands traces to a collector, over HTTP.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/host_lookup.h"
#include "server/router/otlp_endpoint.h"

namespace httplib {
class ClientImpl;
class Result;
struct Request;
}  // namespace httplib

namespace runahead {

// What came of it. kLater: it may be taken another time, as OTLP says of connections that break and of 429, 502, 503
// and 504.
enum class OtlpResult { kTaken, kLater, kRefused };

struct OtlpAnswer {
  OtlpResult result = OtlpResult::kRefused;
  std::string why;                           // one line, of what was not taken; also where some spans were not
  std::optional<absl::Duration> after = {};  // kLater: when, where the collector says so
};

class OtlpPost {
 public:
  // `resolver` as HostLookup has it.
  OtlpPost(const OtlpEndpoint& endpoint, const OtlpHeaders& headers, HostLookup::Resolver resolver = SystemAddresses);
  ~OtlpPost();

  // Sends an ExportTraceServiceRequest and waits for the answer: up to two seconds for the host's addresses, as long
  // for a connection to each of them until one takes it, up to `patience` for each part of the rest, and for the
  // answer's body no longer than all that together. The answer's status counts, however its body goes on, of which 64
  // KiB are read. For one thread at a time.
  OtlpAnswer Send(const std::string& json, absl::Duration patience) RUNAHEAD_EXCLUDES(mu_);

  // Thread-safe. One that is under way ends soon, and those that follow at once.
  void Cut() RUNAHEAD_EXCLUDES(mu_);

  const std::string& address() const { return address_; }  // host:port

 private:
  bool is_cut() const RUNAHEAD_EXCLUDES(mu_);
  // What came of `request` at the first of the `addresses`, which are not none, that takes a connection.
  httplib::Result SendToFirst(const std::vector<std::string>& addresses, httplib::Request& request)
      RUNAHEAD_EXCLUDES(mu_);

  const std::string path_;
  const OtlpHeaders headers_;
  const std::string host_, address_;
  HostLookup lookup_;
  const std::unique_ptr<httplib::ClientImpl> client_;
  mutable Mutex mu_;
  bool cut_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

}  // namespace runahead
