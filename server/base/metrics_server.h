// The HTTP endpoint that Prometheus scrapes, and that says whether the process is well.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/connection_metrics.h"
#include "server/base/metrics.h"

namespace runahead {

struct MetricsServerOptions {
  // What /healthz says: "ok", or 503 and the message. Called on the server's thread; must not block. Null: always OK.
  std::function<absl::Status()> health;
  const ConnectionMetrics* connections = nullptr;  // null: nothing is counted; else it must outlive the server
};

// Serves GET /metrics (text format) and GET /healthz ("ok": the process lives and its port answers; whether it serves
// is told by gRPC health) on two threads of its own until destroyed. A whole request is to come within seconds, and its
// answer to be taken so. When there are too many connections, the oldest one goes: who sends its request with its
// connection, as scrapers and probes do, is always served.
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
