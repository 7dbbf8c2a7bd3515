#include "worker/options.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"

namespace runahead {
namespace {

constexpr int64_t kLeastKvMemory = 1 << 20;

}  // namespace

void DeclareWorkerOptions(ConfigSchema& schema, WorkerOptions& options) {
  schema.String("role", &options.role, {.one_of = {"prefill", "decode", "both"}, .required = true},
                "What this worker does");
  schema.String("name", &options.name, {}, "Name in logs and plans; the role where empty");
  schema.String("model", &options.model, {.allow_empty = false, .required = true, .value_name = "PATH"},
                "GGUF file, or Hugging Face folder, of the model");
  schema.String("device", &options.device, {.one_of = {"auto", "cpu", "cuda"}},
                "What computes; auto takes the GPU where there is one, and says in the log why it took the CPU");
  schema.Int("gpu", &options.gpu, {.min = 0, .max = 1023},
             "Which GPU, as CUDA numbers those that it shows; counted round where there are fewer");
  schema.Bytes(
      "device_memory_budget", &options.device_memory_budget, {.min = 0},
      "What the device may allocate, weights included; 0 is no limit on the CPU, and nine tenths of what a GPU "
      "has free");
  schema.String(
      "dtype", &options.dtype, {.one_of = {"auto", "f32", "bf16", "f16", "int8"}},
      "Compute dtype; auto chooses by device and weights, and says in the log why; f16 is for GPUs; int8, for CPUs, "
      "multiplies quantised weights with activations in 8 bits");
  schema.String("kv_dtype", &options.kv_dtype, {.one_of = {"auto", "f32", "bf16", "f16"}},
                "What KV is kept in; auto is f16 with dtype int8, and the compute dtype with others; a GPU takes no "
                "other than its compute dtype");
  schema.String("shared_weights", &options.shared_weights, {.value_name = "PATH"},
                "A folder in memory, such as /dev/shm: workers of this host that run the same model in int8 have its "
                "weights there, packed once; empty: each has its own");
  schema.Int("threads", &options.threads, {.min = 0, .max = 1024},
             "Compute threads; 0 takes one for each core that affinity mask and cgroup allow");
  schema.Int("nice", &options.nice, {.min = 0, .max = 19},
             "How far compute threads of the CPU device step back behind others on the same cores, as of nice(1)");
  schema.String("link_host", &options.link_host, {},
                "Address of this host at which other workers reach it for KV; that of listen, or the first network's, "
                "where empty");
  schema.Int("link_port", &options.link_port, {.min = 0, .max = 65535},
             "Port at which other workers reach it for KV, the same for as long as it runs; 0 takes any free one");
  schema.String("link_transport", &options.link_transport, {.one_of = {"tcp", "ucx"}},
                "What KV travels over between workers, the same in all of them; ucx is for RDMA networks that only "
                "trusted hosts reach");
  schema.String(
      "handoff", &options.handoff, {.one_of = {"link", "grpc"}},
      "What prefill hands KV to decode workers over; grpc needs no port but the one that decode workers listen "
      "on");
  schema.Double("chain_link_gbps", &options.chain_link_gbps, {.min = 0, .max = 1e6},
                "Paces the edges of the chain to this many gigabits per second; 0 does not");
  schema.Double("chain_link_noise", &options.chain_link_noise, {.min = 0, .max = 1},
                "Share of the frames on paced edges that are slowed down at random, as by others' traffic; 0 is none");
  schema.Double("chain_link_noise_factor", &options.chain_link_noise_factor, {.min = 1, .max = 1e6},
                "Such a frame takes 1 to this many times as long, evenly drawn");
  schema.Int("chain_link_noise_seed", &options.chain_link_noise_seed, {.min = 0}, "The same seed draws the same");
  schema.Double("emulated_link_gbps", &options.emulated_link_gbps, {.min = 0, .max = 1e6},
                "Paces copies between host and device to this many gigabits per second; 0 does not");
  schema.Double("emulated_host_gbps", &options.emulated_host_gbps, {.min = 0, .max = 1e6},
                "Gigabits of KV per second that the host lane reads at most, where emulated_link_gbps makes the CPU "
                "stand for a GPU; 0: as fast as it goes");
  schema.Bytes(
      "prefill_memory", &options.prefill_memory, {.min = 0},
      "Layer buffers of prefill; 0 takes two prompts of the model's context, at most 4GiB, and on CPUs at most "
      "a quarter of the memory that machine and cgroup allow");
  schema.Bytes("kv_memory", &options.kv_memory, {.min = 0},
               "The KV store of decode; 0 takes 2GiB, at most a quarter of the memory that machine and cgroup allow");
  schema.Int("max_batch", &options.max_batch, {.min = 1, .max = 4096}, "Sequences in one decode step");
  schema.Bytes(
      "kv_device_budget", &options.kv_device_budget, {.min = 0},
      "What of a decode worker's device memory KV, X and their staging may take; 0 is what the device's budget "
      "leaves. Where kv_memory does not fit it stays in host memory, and decode brings it over (KVPR)");
  schema.String(
      "recompute", &options.recompute, {.value_name = "auto|off|TOKENS"},
      "How much of KV in host memory decode recomputes instead of copying it: auto solves for the fastest, off "
      "copies all; a number, for experiments, is the same for all sequences");
  schema.String("kv_bits", &options.kv_bits, {.one_of = {"4", "8", "16"}},
                "Bits of a value of KV as decode stores it: 4 and 8 quantise it, in host memory, so that more has room "
                "and less has to come over; 16 keeps it as it is computed");
  schema.String(
      "host_lane", &options.host_lane, {.value_name = "auto|off|TOKENS"},
      "Whether the host's CPU may attend over part of KV in host memory, beside the device: auto gives it what "
      "makes steps shorter, off nothing; a number, for experiments, is the same for all sequences");
  schema.Int("host_lane_threads", &options.host_lane_threads, {.min = 0, .max = 1024},
             "Threads of the host lane; 0 takes the cores that the device's threads leave");
  schema.String(
      "decode_schedule", &options.decode_schedule, {.one_of = {"auto", "latency", "throughput"}},
      "Where a decode worker's weights are: latency on the device, throughput in host memory, from where every step "
      "brings them over, layer by layer for all its sequences; auto does so where they do not fit on the device");
  schema.Int("static_window", &options.static_window, {.min = 0, .max = 1 << 24},
             "Decode over static windows: each sequence's KV in a buffer for contexts of so many tokens, beside the KV "
             "store; 0 decodes over the store");
  schema.Int("static_window_reserve", &options.static_window_reserve, {.min = 0, .max = 1 << 25},
             "Rows of such a buffer, from static_window up; 0 is 2 * (static_window - 1), the most");
  DeclareProcessOptions(schema, options.process);
}

absl::StatusOr<LaneChoice> ParseLaneChoice(absl::string_view option, const std::string& text) {
  using Mode = LaneChoice::Mode;
  if (text == "auto") return LaneChoice{Mode::kAuto};
  if (text == "off") return LaneChoice{Mode::kOff};
  LaneChoice fixed{Mode::kFixed};
  if (!absl::SimpleAtoi(text, &fixed.tokens) || fixed.tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": '", text, "' is neither auto, off, nor a number of tokens"));
  }
  return fixed;
}

absl::Status CheckWorkerOptions(const WorkerOptions& options) {
  RUNAHEAD_RETURN_IF_ERROR(ParseLaneChoice("recompute", options.recompute).status());
  RUNAHEAD_RETURN_IF_ERROR(ParseLaneChoice("host_lane", options.host_lane).status());
  RUNAHEAD_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.process.listen));
  if (options.process.cluster_key.empty() && !IsLoopback(listen.host)) return NeedsKey("listen", listen.host);
  if (options.kv_memory > 0 && options.kv_memory < kLeastKvMemory) {
    return absl::InvalidArgumentError("kv_memory: holds next to nothing: give at least 1MiB, or 0 for the default");
  }
  if (options.device == "cuda" && options.emulated_link_gbps > 0) {
    return absl::InvalidArgumentError(
        "emulated_link_gbps: paces the copies of the CPU device only: leave it out, or give device: cpu");
  }
  if (options.emulated_host_gbps > 0 && options.emulated_link_gbps == 0) {
    return absl::InvalidArgumentError(
        "emulated_host_gbps: give emulated_link_gbps besides: without a link nothing is attended to on the host's "
        "side");
  }
  if (options.decode_schedule == "throughput" && options.prefill()) {
    return absl::InvalidArgumentError(
        "decode_schedule: throughput keeps weights in host memory, and prefill computes with weights on the device: "
        "give role: decode, and let another worker do prefill");
  }
  if (options.quantises_kv() && ParseLaneChoice("host_lane", options.host_lane)->tokens > 0) {
    return absl::InvalidArgumentError(
        "host_lane: the host attends over KV as it is computed, and kv_bits quantises it: leave host_lane out, or give "
        "kv_bits: 16");
  }
  if (options.static_window > 0 && options.quantises_kv()) {
    return absl::InvalidArgumentError("static_window: keeps KV as it is computed: leave it out, or give kv_bits: 16");
  }
  if (options.static_window_reserve > 0 && options.static_window == 0) {
    return absl::InvalidArgumentError("static_window_reserve: give static_window besides: it is the reserve of that");
  }
  if (options.chain_link_noise > 0 && options.chain_link_gbps == 0) {
    return absl::InvalidArgumentError(
        "chain_link_noise: give chain_link_gbps besides: what is slowed down is the time that this gives a frame");
  }
  return absl::OkStatus();
}

absl::Status NeedsKey(absl::string_view option, absl::string_view host) {
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": ", host,
                   " may be reached from other hosts, and whoever reaches a worker without a key may use it: give this "
                   "worker and its router the same cluster_key, or listen on 127.0.0.1"));
}

}  // namespace runahead
