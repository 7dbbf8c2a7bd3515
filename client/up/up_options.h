// What `runahead up` is told, by flags or in its YAML file, and the processes that follow from it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/up/child.h"
#include "server/base/config.h"
#include "server/base/tls_files.h"

namespace runahead {

struct UpOptions {
  std::string model;
  int prefill = 1;
  int decode = 1;
  int threads = 0;  // of each worker; 0: cores / workers, at least 1
  std::string device = "auto";
  int64_t device_memory_budget = 0;  // bytes, of each worker
  std::string dtype = "auto";
  std::string kv_dtype = "auto";
  std::string shared_weights = "auto";
  std::string schedule = "kvr";
  std::string table;
  std::string reserve = "expected";
  std::string known_beginnings = "on";
  std::string api_keys;
  std::string http = "auto";  // where the gateway listens: auto, off, or host:port
  std::vector<std::string> model_aliases;
  double chain_link_gbps = 0;
  double chain_link_noise = 0;
  double chain_link_noise_factor = 3;
  int64_t chain_link_noise_seed = 1;
  double emulated_link_gbps = 0;
  int64_t kv_memory = 0;         // bytes, of each decode worker; 0: its default
  int64_t kv_device_budget = 0;  // bytes, of each decode worker
  std::string step_rows = "auto";
  std::string recompute = "auto";
  std::string recompute_within = "context";
  std::string kvpr_objective = "step";
  std::string kv_bits = "16";
  std::string x_bits = "auto";
  std::string keep_beginnings = "auto";
  std::string host_lane = "auto";
  int host_lane_threads = 0;
  double emulated_host_gbps = 0;
  std::string decode_schedule = "auto";
  TlsFiles tls, cluster_tls;  // of the router's port, and of all processes among each other
  std::string tls_client_auth = "none";
  std::string cluster_tls_name = "runahead-cluster";
  bool experiments = false;
  std::string trace = "off";
  std::string otlp_endpoint;  // URL; empty: traces are sent nowhere
  std::string log_format = "text";
  bool log_prompts = false;

  bool has_gateway() const { return http != "off" && (http != "auto" || tls.cert.empty()); }
  bool shares_weights() const { return shared_weights == "auto" && device != "cuda"; }
};

void DeclareUpOptions(ConfigSchema& schema, UpOptions& options);

// What the schema cannot see: INVALID_ARGUMENT names the flag that does not go with the others.
absl::Status CheckUpOptions(const UpOptions& options);

// Threads of each of `of_role` workers of a role on a machine of `cores`. Roles share the cores: decode steps back
// while prompts are at work.
int ThreadsPerWorker(const UpOptions& options, int of_role, int cores);

// prefill-0.., decode-0..; binaries stand in `folder`.
std::vector<ChildSpec> WorkerSpecs(const UpOptions& options, const std::string& folder, int cores);

// The router over `worker_addresses`, in the order of WorkerSpecs.
ChildSpec RouterSpec(const UpOptions& options, const std::string& folder,
                     const std::vector<std::string>& worker_addresses);

// The gateway in front of the router at `router`; only where options.has_gateway().
ChildSpec GatewaySpec(const UpOptions& options, const std::string& folder, const std::string& router);

}  // namespace runahead
