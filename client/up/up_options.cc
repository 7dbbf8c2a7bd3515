#include "client/up/up_options.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/address.h"
#include "server/base/tls_options.h"

namespace runahead {
namespace {

// How long children finish what they do after SIGTERM; within SupervisorOptions::stop_timeout.
constexpr char kDrainTimeout[] = "--drain-timeout=10s";
// Prompts and answers want the same cores. A prompt goes first: its client waits for the first token, and the answers
// that it joins are then decoded in one step with it.
constexpr char kDecodeStepsBack[] = "--nice=10";

// Hands the files on that are given. `prefix`: of the flags, "--tls" or "--cluster-tls".
void AddTls(const std::string& prefix, const TlsFiles& files, ChildSpec& spec) {
  for (const auto& [which, file] : {std::pair("-cert=", files.cert), {"-key=", files.key}, {"-ca=", files.ca}}) {
    if (!file.empty()) spec.args.push_back(absl::StrCat(prefix, which, file));
  }
}

void AddClusterTls(const UpOptions& options, ChildSpec& spec) {
  AddTls("--cluster-tls", options.cluster_tls, spec);
  if (!options.cluster_tls.cert.empty()) {
    spec.args.push_back(absl::StrCat("--cluster-tls-name=", options.cluster_tls_name));
  }
}

// `number` counts all workers: each takes the next GPU, where there are some.
ChildSpec WorkerSpec(const UpOptions& options, const std::string& role, int index, int number,
                     const std::string& folder, int cores) {
  ChildSpec spec{.name = absl::StrCat(role, "-", index), .binary = folder + "/runahead-worker", .args = {}};
  spec.args = {absl::StrCat("--role=", role),
               absl::StrCat("--name=", spec.name),
               absl::StrCat("--model=", options.model),
               absl::StrCat("--dtype=", options.dtype),
               absl::StrCat("--threads=",
                            ThreadsPerWorker(options, role == "prefill" ? options.prefill : options.decode, cores)),
               kDrainTimeout,
               absl::StrCat("--device=", options.device)};
  if (options.kv_dtype != "auto") spec.args.push_back(absl::StrCat("--kv-dtype=", options.kv_dtype));
  if (options.device != "cpu") spec.args.push_back(absl::StrCat("--gpu=", number));
  if (options.device_memory_budget > 0) {
    spec.args.push_back(absl::StrCat("--device-memory-budget=", options.device_memory_budget));
  }
  if (role == "prefill") {
    if (options.chain_link_gbps > 0) {
      spec.args.push_back(absl::StrCat("--chain-link-gbps=", options.chain_link_gbps));
    }
    if (options.chain_link_noise > 0) {
      spec.args.push_back(absl::StrCat("--chain-link-noise=", options.chain_link_noise));
      spec.args.push_back(absl::StrCat("--chain-link-noise-factor=", options.chain_link_noise_factor));
      spec.args.push_back(absl::StrCat("--chain-link-noise-seed=", options.chain_link_noise_seed));
    }
  }
  if (role == "decode") {
    spec.args.push_back(kDecodeStepsBack);
    if (options.kv_memory > 0) spec.args.push_back(absl::StrCat("--kv-memory=", options.kv_memory));
    if (options.kv_device_budget > 0) {
      spec.args.push_back(absl::StrCat("--kv-device-budget=", options.kv_device_budget));
    }
    if (options.step_rows != "auto") spec.args.push_back(absl::StrCat("--step-rows=", options.step_rows));
    if (options.recompute != "auto") spec.args.push_back(absl::StrCat("--recompute=", options.recompute));
    if (options.recompute_within != "context") {
      spec.args.push_back(absl::StrCat("--recompute-within=", options.recompute_within));
    }
    if (options.kvpr_objective != "step") {
      spec.args.push_back(absl::StrCat("--kvpr-objective=", options.kvpr_objective));
    }
    if (options.host_lane != "auto") spec.args.push_back(absl::StrCat("--host-lane=", options.host_lane));
    if (options.host_lane_threads > 0) {
      spec.args.push_back(absl::StrCat("--host-lane-threads=", options.host_lane_threads));
    }
    if (options.emulated_host_gbps > 0) {
      spec.args.push_back(absl::StrCat("--emulated-host-gbps=", options.emulated_host_gbps));
    }
    if (options.decode_schedule != "auto") {
      spec.args.push_back(absl::StrCat("--decode-schedule=", options.decode_schedule));
    }
    if (options.kv_bits != "16") spec.args.push_back(absl::StrCat("--kv-bits=", options.kv_bits));
    if (options.x_bits != "auto") spec.args.push_back(absl::StrCat("--x-bits=", options.x_bits));
    if (options.keep_beginnings != "auto") {
      spec.args.push_back(absl::StrCat("--keep-beginnings=", options.keep_beginnings));
    }
  }
  if (options.emulated_link_gbps > 0) {
    spec.args.push_back(absl::StrCat("--emulated-link-gbps=", options.emulated_link_gbps));
  }
  AddClusterTls(options, spec);
  if (options.log_format != "text") spec.args.push_back(absl::StrCat("--log-format=", options.log_format));
  return spec;
}

}  // namespace

void DeclareUpOptions(ConfigSchema& schema, UpOptions& options) {
  schema.String("model", &options.model, {.allow_empty = false, .required = true, .value_name = "PATH"},
                "GGUF file, or Hugging Face folder, of the model");
  schema.Int("prefill", &options.prefill, {.min = 1, .max = 64}, "Prefill workers; they form the chain");
  schema.Int("decode", &options.decode, {.min = 1, .max = 64}, "Decode workers");
  schema.Int("threads", &options.threads, {.min = 0, .max = 1024},
             "Compute threads of each worker; 0 shares out the cores among the workers of a role, at least 1 each");
  schema.String("device", &options.device, {.one_of = {"auto", "cpu", "cuda"}},
                "What workers compute on; auto takes GPUs, one after the other, where there are some");
  schema.Bytes(
      "device_memory_budget", &options.device_memory_budget, {.min = 0},
      "What the device of each worker may allocate, weights included; 0 is no limit on the CPU, and nine tenths "
      "of what a GPU has free");
  schema.String(
      "dtype", &options.dtype, {.one_of = {"auto", "f32", "bf16", "f16", "int8"}},
      "Compute dtype; auto chooses by device and weights, and says in the log why; f16 is for GPUs; int8, for CPUs, "
      "multiplies quantised weights with activations in 8 bits");
  schema.String("kv_dtype", &options.kv_dtype, {.one_of = {"auto", "f32", "bf16", "f16"}},
                "What KV is kept in; auto is f16 with dtype int8, and the compute dtype with others");
  schema.String("shared_weights", &options.shared_weights, {.one_of = {"auto", "off"}},
                "auto: workers that compute in int8 have their weights in common, packed once; off: each has its own");
  schema.String("schedule", &options.schedule, {.one_of = {"kvr", "kvr-even", "single"}},
                "How prompts are spread over the chain");
  schema.String("table", &options.table, {.value_name = "FILE"},
                "Partition table (YAML); without one, prompts are split evenly over the chain");
  schema.String("reserve", &options.reserve, {.one_of = {"expected", "full"}},
                "For how much of an answer decode memory is reserved: expected is what such answers took lately, and "
                "more as it gets longer; full is max_tokens, before its prompt is computed");
  schema.String("known_beginnings", &options.known_beginnings, {.one_of = {"on", "off"}},
                "on: a prompt that begins as a sequence did that a decode worker still has KV of may go there; off: no "
                "KV is kept for others");
  schema.String("api_keys", &options.api_keys, {.value_name = "FILE"},
                "API keys (YAML), of which every call to the router needs one; without it, anybody may call");
  schema.String(
      "http", &options.http, {.value_name = "auto|off|HOST:PORT"},
      "Where the OpenAI API is spoken over HTTP; auto takes a free loopback port, but where the router speaks "
      "TLS nobody speaks it");
  schema.Strings("model_aliases", &options.model_aliases, {.max_items = 64},
                 "Other names that clients of the OpenAI API may call the model by");
  schema.Gone("handoff", "link", "slices travel over the workers' links");
  schema.Double("chain_link_gbps", &options.chain_link_gbps, {.min = 0, .max = 1e6},
                "Paces the edges of the chain to this many gigabits per second; 0 does not");
  schema.Double("chain_link_noise", &options.chain_link_noise, {.min = 0, .max = 1},
                "Share of the frames on paced edges that are slowed down at random, as by others' traffic; 0 is none");
  schema.Double("chain_link_noise_factor", &options.chain_link_noise_factor, {.min = 1, .max = 1e6},
                "Such a frame takes 1 to this many times as long, evenly drawn");
  schema.Int("chain_link_noise_seed", &options.chain_link_noise_seed, {.min = 0}, "The same seed draws the same");
  schema.Double("emulated_link_gbps", &options.emulated_link_gbps, {.min = 0, .max = 1e6},
                "Paces copies between host and device to this many gigabits per second; 0 does not");
  schema.Bytes("kv_memory", &options.kv_memory, {.min = 0},
               "KV store of each decode worker; 0 takes 2GiB, at most a quarter of the memory that machine and cgroup "
               "allow");
  schema.Bytes("kv_device_budget", &options.kv_device_budget, {.min = 0},
               "What of each decode worker's device memory KV, X and their staging may take; 0 is what the device's "
               "budget leaves");
  schema.String("step_rows", &options.step_rows, {.value_name = "auto|off|TOKENS"},
                "Tokens of prompts that a decode step computes at most beside its sequences; only where it computes "
                "them do leases grow");
  schema.String("recompute", &options.recompute, {.value_name = "auto|off|TOKENS"},
                "How much of KV in host memory decode recomputes instead of copying it");
  schema.String("recompute_within", &options.recompute_within, {.one_of = {"context", "prompt"}},
                "Of which positions decode may recompute: all that a sequence has, or those of its prompt");
  schema.String("kvpr_objective", &options.kvpr_objective, {.one_of = {"step", "row", "column", "pipelined"}},
                "By what the split of a decode step is solved: what a step takes, or a form of KVPR's paper");
  schema.String("kv_bits", &options.kv_bits, {.one_of = {"4", "8", "16"}},
                "Bits of a value of KV as decode stores it: 4 and 8 quantise it; 16 keeps it as it is computed");
  schema.String("x_bits", &options.x_bits, {.one_of = {"auto", "4", "8", "16"}},
                "Bits of a value of X as decode stores it: 4 and 8 quantise it; 16 keeps it as it comes");
  schema.String("keep_beginnings", &options.keep_beginnings, {.one_of = {"auto", "on", "off"}},
                "Whether decode workers keep KV of sequences that ended, for prompts that begin alike; auto: but where "
                "kv_bits quantises it");
  schema.String("host_lane", &options.host_lane, {.value_name = "auto|off|TOKENS"},
                "Whether the host's CPU may attend over part of KV in host memory, beside the device");
  schema.Int("host_lane_threads", &options.host_lane_threads, {.min = 0, .max = 1024},
             "Its threads in each decode worker; 0 is the cores that the device's threads leave, at least 1");
  schema.Double("emulated_host_gbps", &options.emulated_host_gbps, {.min = 0, .max = 1e6},
                "Gigabits of KV per second that it reads at most, beside emulated_link_gbps; 0 is as fast as it goes");
  schema.String("decode_schedule", &options.decode_schedule, {.one_of = {"auto", "latency", "throughput"}},
                "Where decode workers' weights are: latency on the device, throughput in host memory, from where "
                "every step brings them over; auto does so where they do not fit on the device");
  DeclarePortTls(schema, options.tls, options.tls_client_auth);
  DeclareClusterTls(schema, options.cluster_tls, options.cluster_tls_name);
  schema.Bool("experiments", &options.experiments, "Requests may choose width, parts and schedule");
  schema.String("trace", &options.trace, {.one_of = {"off", "asked", "all"}},
                "Which requests are recorded, for runahead trace: asked is those whose traceparent says so");
  schema.String("otlp_endpoint", &options.otlp_endpoint, {.value_name = "URL"},
                "Where the router sends traces, too: a collector of OpenTelemetry that takes OTLP over HTTP, such as "
                "http://127.0.0.1:4318");
  schema.String("log_format", &options.log_format, {.one_of = {"text", "json"}},
                "How all processes write their logs: text, for people, or json, an object a line");
  schema.Bool("log_prompts", &options.log_prompts,
              "The log's line of a request has its prompt, the first 1000 characters; else no line has any of it");
}

absl::Status CheckUpOptions(const UpOptions& options) {
  if (options.device == "cuda" && options.emulated_link_gbps > 0) {
    return absl::InvalidArgumentError(
        "--emulated-link-gbps: paces the copies of the CPU device only: leave it out, or give --device cpu");
  }
  if (options.chain_link_noise > 0 && options.chain_link_gbps == 0) {
    return absl::InvalidArgumentError(
        "--chain-link-noise: give --chain-link-gbps besides: what is slowed down is the time that this gives a frame");
  }
  if (options.emulated_host_gbps > 0 && options.emulated_link_gbps == 0) {
    return absl::InvalidArgumentError(
        "--emulated-host-gbps: give --emulated-link-gbps besides: without a link nothing is attended to on the host's "
        "side");
  }
  if (options.http != "auto" && options.http != "off") {
    const absl::Status address = ParseHostPort(options.http).status();
    if (!address.ok())
      return absl::InvalidArgumentError(absl::StrCat("--http: ", address.message(), "; or auto, or off"));
    if (!options.tls.cert.empty()) {
      return absl::InvalidArgumentError(
          "--http: the router speaks TLS: leave it out, and start runahead-gateway with --router-tls-ca beside it");
    }
  }
  return absl::OkStatus();
}

int ThreadsPerWorker(const UpOptions& options, int of_role, int cores) {
  return options.threads > 0 ? options.threads : std::max(1, cores / of_role);
}

std::vector<ChildSpec> WorkerSpecs(const UpOptions& options, const std::string& folder, int cores) {
  std::vector<ChildSpec> specs;
  for (int i = 0; i < options.prefill; ++i) specs.push_back(WorkerSpec(options, "prefill", i, i, folder, cores));
  for (int i = 0; i < options.decode; ++i) {
    specs.push_back(WorkerSpec(options, "decode", i, options.prefill + i, folder, cores));
  }
  return specs;
}

ChildSpec RouterSpec(const UpOptions& options, const std::string& folder,
                     const std::vector<std::string>& worker_addresses) {
  ChildSpec spec{.name = "router", .binary = folder + "/runahead-router", .args = {}, .vital = true};
  spec.args = {absl::StrCat("--model=", options.model), absl::StrCat("--schedule=", options.schedule),
               absl::StrCat("--dtype=", options.dtype), kDrainTimeout};
  if (!options.table.empty()) spec.args.push_back(absl::StrCat("--table=", options.table));
  if (options.reserve != "expected") spec.args.push_back(absl::StrCat("--reserve=", options.reserve));
  if (options.known_beginnings != "on") {
    spec.args.push_back(absl::StrCat("--known-beginnings=", options.known_beginnings));
  }
  if (!options.api_keys.empty()) spec.args.push_back(absl::StrCat("--api-keys=", options.api_keys));
  AddTls("--tls", options.tls, spec);
  if (options.tls_client_auth != "none")
    spec.args.push_back(absl::StrCat("--tls-client-auth=", options.tls_client_auth));
  AddClusterTls(options, spec);
  if (options.experiments) spec.args.push_back("--experiments");
  if (options.trace != "off") spec.args.push_back(absl::StrCat("--trace=", options.trace));
  if (!options.otlp_endpoint.empty()) spec.args.push_back(absl::StrCat("--otlp-endpoint=", options.otlp_endpoint));
  if (options.log_format != "text") spec.args.push_back(absl::StrCat("--log-format=", options.log_format));
  if (options.log_prompts) spec.args.push_back("--log-prompts");
  for (size_t i = 0; i < worker_addresses.size(); ++i) {
    const char* const role = i < static_cast<size_t>(options.prefill) ? "prefill" : "decode";
    spec.args.push_back(absl::StrCat("--workers=role=", role, ",address=", worker_addresses[i]));
  }
  return spec;
}

ChildSpec GatewaySpec(const UpOptions& options, const std::string& folder, const std::string& router) {
  ChildSpec spec{.name = "gateway", .binary = folder + "/runahead-gateway", .args = {}};
  if (options.http != "auto") spec.listen = options.http;
  spec.args = {absl::StrCat("--router=", router), kDrainTimeout};
  for (const std::string& alias : options.model_aliases) spec.args.push_back(absl::StrCat("--model-aliases=", alias));
  if (options.log_format != "text") spec.args.push_back(absl::StrCat("--log-format=", options.log_format));
  return spec;
}

}  // namespace runahead
