// What a router is started with.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/base/config.h"
#include "server/base/process.h"
#include "server/router/fleet.h"
#include "server/router/request_memory.h"

namespace runahead {

struct RouterOptions {
  ProcessOptions process;
  std::string model;
  std::vector<WorkerSpec> workers;
  std::string dns_server;  // empty: the system's
  absl::Duration dns_period = absl::Seconds(5);
  std::string table;
  std::string schedule = "kvr";
  std::string dtype = "auto";
  int queue_size = 256;
  int max_sessions = 128;
  int max_streams = 1024;
  RequestMemoryOptions request_memory;
  int connection_streams = 1024;
  absl::Duration stall_timeout = absl::Seconds(30);
  absl::Duration absence_timeout = absl::Seconds(30);
  bool experiments = false;
  std::string trace = "off";
  int traces_kept = 64;
  bool log_prompts = false;
};

// Declares all keys; `options` holds the defaults.
void DeclareRouterOptions(ConfigSchema& schema, RouterOptions& options);

// What the schema cannot say of the worker list: each entry has an address or a service, each of them stands there once
// (a service once a role). INVALID_ARGUMENT names the entry.
absl::Status CheckWorkers(absl::Span<const WorkerSpec> workers);

}  // namespace runahead
