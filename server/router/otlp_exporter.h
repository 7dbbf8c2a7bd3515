// Sends traces to a collector, behind the requests' backs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/backoff.h"
#include "server/base/clock.h"
#include "server/base/host_lookup.h"
#include "server/base/rare_line.h"
#include "server/router/otlp_endpoint.h"
#include "server/router/otlp_metrics.h"
#include "server/router/otlp_post.h"
#include "server/router/whole_trace.h"

namespace runahead {

// How many traces wait, at most: beyond either bound new ones are dropped. And how long their thread waits.
struct OtlpLimits {
  size_t traces = 2048;
  size_t bytes = size_t{64} << 20;            // as they lie in memory
  absl::Duration flush = absl::Seconds(2);    // for what waits at the end
  absl::Duration answer = absl::Seconds(10);  // for a collector's, as OtlpPost takes it
};

// Thread-safe. One thread sends what was offered, some traces at a time, in order: a second after the first of them, or
// when there are kOtlpBatch. What the collector cannot take now is tried again, after pauses, for as long as it takes:
// what comes meanwhile waits, while there is room.
class OtlpExporter {
 public:
  static constexpr size_t kOtlpBatch = 64;

  // `metrics` and `clock` must outlive it. Throws std::system_error where the system refuses a thread (WithThreads).
  // `resolver` as HostLookup has it.
  OtlpExporter(const OtlpEndpoint& endpoint, const OtlpHeaders& headers, OtlpMetrics& metrics, Clock& clock,
               OtlpLimits limits = {}, HostLookup::Resolver resolver = SystemAddresses);
  ~OtlpExporter() { Stop(); }
  OtlpExporter(const OtlpExporter&) = delete;
  OtlpExporter& operator=(const OtlpExporter&) = delete;

  // Never blocks: it counts what it drops.
  void Offer(WholeTrace whole) RUNAHEAD_EXCLUDES(mu_);

  // Takes no more, and sends what waits, for limits.flush at most; what is left is dropped. By the owner only.
  void Stop() RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Waiting {
    WholeTrace whole;
    size_t bytes = 0;
    absl::Time since;
  };
  void Run() RUNAHEAD_EXCLUDES(mu_);
  // When it is due, the next request to the collector; `traces` of them are in it. Empty: all is sent, and it is to
  // end.
  std::string NextRequest(size_t& traces) RUNAHEAD_EXCLUDES(mu_);
  bool IsDue() const RUNAHEAD_REQUIRES(mu_);
  // False: the router ends before it was taken or refused, and its traces are dropped.
  bool SendUntilTaken(const std::string& json, size_t traces) RUNAHEAD_EXCLUDES(mu_);
  // `last`: the router ends, so that there is no other try.
  OtlpAnswer Try(const std::string& json, bool& last) RUNAHEAD_EXCLUDES(mu_);
  void AwaitRetry(absl::Time until) RUNAHEAD_EXCLUDES(mu_);  // or the end
  // Drops what waits, and the `unsent` traces of a request that was not taken.
  void DropRest(size_t unsent) RUNAHEAD_EXCLUDES(mu_);
  void Say(const OtlpAnswer& answer);
  void SayDropped();

  OtlpMetrics& metrics_;
  Clock& clock_;
  const OtlpLimits limits_;
  OtlpPost post_;
  // One for each thing to say: what happens often hides no other.
  RareLine partly_taken_, not_taken_, refused_, dropped_;
  Backoff backoff_;  // for its thread
  Mutex mu_;
  CondVar changed_;
  std::deque<Waiting> waiting_ RUNAHEAD_GUARDED_BY(mu_);
  size_t bytes_ RUNAHEAD_GUARDED_BY(mu_) = 0;                  // of them
  std::optional<absl::Time> end_by_ RUNAHEAD_GUARDED_BY(mu_);  // on the monotonic clock; it is to end
  bool ended_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
