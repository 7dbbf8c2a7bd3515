// The HTTP endpoint that Prometheus scrapes.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/metrics.h"

namespace runahead {

// Serves GET /metrics (text format) and GET /healthz ("ok": the process lives; whether it serves is told by gRPC
// health) on threads of its own until destroyed.
class MetricsServer {
 public:
  // `listen` is host:port, port 0 takes a free one. `registry` must outlive the server. UNAVAILABLE when the address
  // cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& listen,
                                                              const MetricRegistry& registry);
  ~MetricsServer();  // waits for answers in progress, at most a few seconds

  // host:port that was really bound.
  const std::string& address() const { return address_; }

 private:
  struct Impl;
  MetricsServer(std::unique_ptr<Impl> impl, std::string address);

  std::unique_ptr<Impl> impl_;
  std::string address_;
};

}  // namespace runahead
