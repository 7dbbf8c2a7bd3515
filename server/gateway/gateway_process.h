// A running gateway: everything that main puts together.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/gateway/gateway_options.h"

namespace runahead {

class GatewayProcess {
 public:
  // Listens. The router is called when somebody asks for something. Errors name the option.
  static absl::StatusOr<std::unique_ptr<GatewayProcess>> Start(const GatewayOptions& options);
  ~GatewayProcess();

  const std::string& address() const;          // host:port of the HTTP port
  const std::string& metrics_address() const;  // host:port of /metrics

  // Ends: no new requests; those that run may go on for `timeout`.
  void Drain(absl::Duration timeout);

 private:
  struct Parts;
  explicit GatewayProcess(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace runahead
