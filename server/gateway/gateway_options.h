// What a gateway is started with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/config.h"
#include "server/base/logging.h"
#include "server/rpc/channel.h"

namespace runahead {

struct GatewayOptions {
  std::string listen = "127.0.0.1:8000";
  std::string metrics_listen = "127.0.0.1:0";
  std::string router;  // host:port
  bool router_tls = false;
  std::string router_tls_ca;           // path
  std::string router_tls_server_name;  // empty: the host of `router`
  std::vector<std::string> model_aliases;
  std::vector<std::string> cors_origins;
  std::vector<std::string> allowed_hosts;
  int max_connections = 4096;
  int64_t max_body = int64_t{16} << 20;         // bytes
  int64_t request_memory = int64_t{512} << 20;  // bytes
  absl::Duration drain_timeout = absl::Seconds(30);
  // Before the first token of a stream its client hears a comment each so long, so that nothing on the way takes it for
  // dead. No key of the configuration: tests set it small.
  absl::Duration quiet_time = absl::Seconds(15);
  std::string log_level = "info";
  std::string log_format = "text";
  int ready_fd = -1;
  int parent_pid = 0;

  LogLevel level() const;  // of log_level, which the schema has checked
  LogFormat format() const { return log_format == "json" ? LogFormat::kJson : LogFormat::kText; }
};

// Declares all keys; `options` holds the defaults.
void DeclareGatewayOptions(ConfigSchema& schema, GatewayOptions& options);

// The names by which it may be called, beside localhost and IP addresses; "*" is all of them.
std::vector<std::string> HostsOf(const GatewayOptions& options);

// How the connection to the router is encrypted. INVALID_ARGUMENT names the option whose file is no good.
absl::StatusOr<ChannelTls> RouterTlsOf(const GatewayOptions& options);

}  // namespace runahead
