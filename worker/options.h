// What a worker process is told, in its YAML file or by flags.
#pragma once

#include <string>

#include "server/base/config.h"
#include "server/base/process.h"

namespace runahead {

struct WorkerOptions {
  // A router has a call open for each of its sequences that decode here, and few connections.
  WorkerOptions() { process.connection_streams = 8192; }

  ProcessOptions process;
  std::string role;
  std::string name;   // empty: the role
  std::string model;  // path
  std::string device = "auto";
  int64_t gpu = 0;  // ordinal
  int64_t device_memory_budget =
      0;  // bytes, weights included; 0: no limit on the CPU, nine tenths of what a GPU has free
  std::string dtype = "auto";
  std::string kv_dtype = "auto";
  std::string shared_weights;  // a folder or file in memory; empty: weights are not shared
  int64_t threads = 0;         // 0: all cores
  int64_t nice = 0;            // of compute threads
  std::string link_host;       // empty: that of process.listen
  int64_t link_port = 0;       // 0: any that is free
  double chain_link_gbps = 0;
  double chain_link_noise = 0;  // share of the frames that are slowed down; only where chain_link_gbps paces them
  double chain_link_noise_factor = 3;  // at most so many times
  int64_t chain_link_noise_seed = 1;
  double emulated_link_gbps = 0;
  double emulated_host_gbps = 0;
  double emulated_call_us = 0;
  double emulated_launch_us = 0;
  int64_t prefill_memory = 0;                // bytes; 0: PrefillRole::DefaultMemory
  int64_t kv_memory = 0;                     // bytes; 0: 2 GiB, at most a quarter of the host's memory
  int64_t max_batch = 0;                     // sequences; 0: DefaultBatch
  std::string step_rows = "auto";            // of prompts, in a decode step; see LaneChoice
  int64_t kv_device_budget = 0;              // bytes; 0: what the device's budget leaves
  std::string recompute = "auto";            // see LaneChoice
  std::string recompute_within = "context";  // or prompt
  std::string kvpr_objective = "step";       // ParseSplitObjective
  std::string kv_bits = "16";                // 4, 8 or 16: of a value of KV as it is stored
  std::string x_bits = "auto";               // 4, 8 or 16: of a value of X as it is stored
  std::string keep_beginnings = "auto";      // auto, on or off
  std::string host_lane = "auto";            // see LaneChoice
  int64_t host_lane_threads = 0;             // 0: the cores that the device leaves
  int64_t static_window = 0;                 // S of StaticWindowSize; 0: decode reads KV in the store
  int64_t static_window_reserve = 0;         // rows; 0: the most
  std::string static_window_bits = "16";     // 8 or 16
  std::string decode_schedule = "auto";      // auto, latency or throughput

  bool quantises_kv() const { return kv_bits != "16"; }
  // Whether KV of sequences that ended stays in the store.
  bool keeps_beginnings() const { return keep_beginnings == "auto" ? !quantises_kv() : keep_beginnings == "on"; }
  bool prefill() const { return role != "decode"; }
  bool decode() const { return role != "prefill"; }
};

// What `recompute` and `host_lane` say of their lanes of KVPR, and `step_rows` of rows.
struct LaneChoice {
  enum class Mode { kAuto, kOff, kFixed } mode = Mode::kAuto;
  int64_t tokens = 0;  // of kFixed, of each sequence; of step_rows, of all together
};
// INVALID_ARGUMENT, naming `option`, where `text` is neither auto, off, nor a number of tokens.
absl::StatusOr<LaneChoice> ParseLaneChoice(absl::string_view option, const std::string& text);

void DeclareWorkerOptions(ConfigSchema& schema, WorkerOptions& options);

// What the schema cannot see: INVALID_ARGUMENT names the key that does not go with the others.
absl::Status CheckWorkerOptions(const WorkerOptions& options);

// INVALID_ARGUMENT for an `option` by which a worker without a key would listen at `host`, which is not loopback.
absl::Status NeedsKey(absl::string_view option, absl::string_view host);

}  // namespace runahead
