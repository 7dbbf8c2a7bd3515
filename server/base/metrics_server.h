// The HTTP endpoint that Prometheus scrapes, and that says whether the process is well.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/connection_metrics.h"
#include "server/base/metrics.h"

namespace runahead {

// In which a whole request is to come, and its answer to be taken. Prometheus waits for 10 s, the kubelet for 1.
inline constexpr absl::Duration kHttpRequestTime = absl::Seconds(5);
inline constexpr absl::Duration kHttpAnswerTime = absl::Seconds(10);

struct MetricsServerOptions {
  // What /healthz says: "ok", or 503 and the message. Called on the server's thread; must not block. Null: always OK.
  std::function<absl::Status()> health = nullptr;
  const ConnectionMetrics* connections = nullptr;  // null: nothing is counted; else it must outlive the server
  // What /readyz says, as health. Null: always OK.
  std::function<absl::Status()> ready = nullptr;
};

// Serves GET /metrics (text format), GET /healthz ("ok": the process lives and its port answers) and GET /readyz ("ok":
// it serves, as gRPC health says it too, whose port may speak TLS, which probes do not) on two threads of its own until
// destroyed. A whole request is to come within seconds, and its answer to be taken so. When there are too many
// connections, the oldest one goes. Where too many wait for /metrics, the next one who asks for it is told so: half of
// all places are left to others. So who asks for the others with its connection, as probes do, always has its answer.
class MetricsServer {
 public:
  // `listen` is host:port, port 0 takes a free one. `registry` must outlive the server. UNAVAILABLE when the address
  // cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& listen, const MetricRegistry& registry,
                                                              const MetricsServerOptions& options = {});
  ~MetricsServer();  // ends all connections

  // host:port that was really bound.
  const std::string& address() const { return address_; }

 private:
  class Loop;
  MetricsServer(std::unique_ptr<Loop> loop, std::string address);

  std::unique_ptr<Loop> loop_;
  std::string address_;
};

}  // namespace runahead
