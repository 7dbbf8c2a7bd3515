// What a router is started with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/base/config.h"
#include "server/base/process.h"
#include "server/router/fleet.h"

namespace runahead {

// A tenant that is not like the others.
struct TenantSpec {
  std::string name;
  double weight = 1;  // of its share beside other tenants that wait
};

struct RouterOptions {
  ProcessOptions process;
  TlsFiles tls;  // of the connections of clients; none: they are not encrypted
  std::string tls_client_auth = "none";
  std::string model;
  std::vector<WorkerSpec> workers;
  std::string dns_server;  // empty: the system's
  absl::Duration dns_period = absl::Seconds(5);
  std::string table;
  std::string schedule = "kvr";
  std::string dtype = "auto";
  std::string reserve = "expected";
  std::string known_beginnings = "on";
  int queue_size = 1024;
  std::vector<TenantSpec> tenants;
  std::string api_keys;  // path; empty: anybody may call
  int max_sessions = 1024;
  int max_streams = 16384;
  int64_t request_memory = int64_t{1} << 30;  // bytes
  absl::Duration stall_timeout = absl::Seconds(30);
  absl::Duration absence_timeout = absl::Seconds(30);
  bool experiments = false;
  std::string trace = "off";
  int traces_kept = 64;
  std::string otlp_endpoint;  // URL; empty: traces are sent nowhere
  std::string otlp_headers;   // path; empty: none
  bool log_prompts = false;

  TlsSpec tls_spec() const { return {"tls", tls}; }
};

// Declares all keys; `options` holds the defaults.
void DeclareRouterOptions(ConfigSchema& schema, RouterOptions& options);

// What the schema cannot say of the worker list: each entry has an address or a service, each of them stands there once
// (a service once a role). INVALID_ARGUMENT names the entry.
absl::Status CheckWorkers(absl::Span<const WorkerSpec> workers);

// Traces can only be sent where there are some. INVALID_ARGUMENT names the option.
absl::Status CheckOtlp(const RouterOptions& options);

// Tenants are given in one place. INVALID_ARGUMENT names both.
absl::Status CheckTenants(const RouterOptions& options);

}  // namespace runahead
