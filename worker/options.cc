#include "worker/options.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/base/limits.h"
#include "server/base/printable.h"

namespace runahead {
namespace {

constexpr int64_t kLeastKvMemory = 1 << 20;

// A number asks for what these cannot give.
absl::Status CheckStepRows(const WorkerOptions& options) {
  RUNAHEAD_ASSIGN_OR_RETURN(const LaneChoice rows, ParseLaneChoice("step_rows", options.step_rows));
  if (rows.tokens == 0 || !options.decode()) return absl::OkStatus();
  if (rows.tokens > kMostBatch) {
    return absl::InvalidArgumentError(absl::StrCat("step_rows: is ", rows.tokens, ", and at most ", kMostBatch));
  }
  const char* beside = options.static_window > 0                 ? "static_window"
                       : options.quantises_kv()                  ? "kv_bits"
                       : options.decode_schedule == "throughput" ? "decode_schedule"
                                                                 : nullptr;
  if (beside == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "step_rows: tokens of prompts are computed over KV as it is computed, with weights on the device: leave it out, "
      "or leave out ",
      beside));
}

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
  schema.Double("emulated_call_us", &options.emulated_call_us, {.min = 0, .max = 1e6},
                "Microseconds that each call of the device takes of the thread that makes it, where emulated_link_gbps "
                "makes the CPU stand for a GPU; 0: what it takes");
  schema.Double("emulated_launch_us", &options.emulated_launch_us, {.min = 0, .max = 1e6},
                "Microseconds that the device takes for each op and copy before it begins, likewise");
  schema.Bytes(
      "prefill_memory", &options.prefill_memory, {.min = 0},
      "Layer buffers of prefill; 0 takes two prompts of the model's context, at most 4GiB, and on CPUs at most "
      "a quarter of the memory that machine and cgroup allow");
  schema.Bytes("kv_memory", &options.kv_memory, {.min = 0},
               "The KV store of decode; 0 takes 2GiB, at most a quarter of the memory that machine and cgroup allow");
  schema.Int("max_batch", &options.max_batch, {.min = 0, .max = kMostBatch},
             "Sequences in one decode step; 0 takes as many as memory and the time of a step allow");
  schema.String(
      "step_rows", &options.step_rows, {.value_name = "auto|off|TOKENS"},
      "Tokens of prompts that a decode step computes at most beside its sequences, where a decode worker computes what "
      "of a prompt was not handed off; auto does so where it takes no more memory, off never; a number packs the "
      "weights for prompts, too");
  schema.Bytes(
      "kv_device_budget", &options.kv_device_budget, {.min = 0},
      "What of a decode worker's device memory KV, X and their staging may take; 0 is what the device's budget "
      "leaves. Where kv_memory does not fit it stays in host memory, and decode brings it over (KVPR)");
  schema.String(
      "recompute", &options.recompute, {.value_name = "auto|off|TOKENS"},
      "How much of KV in host memory decode recomputes instead of copying it: auto solves for the fastest, off "
      "copies all; a number, for experiments, is the same for all sequences");
  schema.String(
      "recompute_within", &options.recompute_within, {.one_of = {"context", "prompt"}},
      "Of which positions decode may recompute: context, all that a sequence has; prompt, those of its prompt "
      "only, as KVPR's paper has it");
  schema.String("kvpr_objective", &options.kvpr_objective, {.one_of = {"step", "row", "column", "pipelined"}},
                "By what the split of a decode step is solved: step is what a step takes, the others are the forms of "
                "KVPR's paper, for experiments; whatever it is, a split runs only where it makes steps shorter");
  schema.String("kv_bits", &options.kv_bits, {.one_of = {"4", "8", "16"}},
                "Bits of a value of KV as decode stores it: 4 and 8 quantise it, in host memory, so that more has room "
                "and less has to come over; 16 keeps it as it is computed");
  schema.String("x_bits", &options.x_bits, {.one_of = {"auto", "4", "8", "16"}},
                "Bits of a value of X as decode stores it: 16 keeps it as it comes, 8 and 4 quantise it; auto takes "
                "kv_bits where X as it comes would spare the link nothing");
  schema.String("keep_beginnings", &options.keep_beginnings, {.one_of = {"auto", "on", "off"}},
                "Whether KV of sequences that ended stays while its memory is free, for prompts that begin alike; auto "
                "keeps it but where kv_bits quantises it, for prompts behind that are computed over what its codes "
                "stand for");
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
  schema.String("static_window_bits", &options.static_window_bits, {.one_of = {"8", "16"}},
                "Bits of a value in such a buffer: 16 keeps KV as it is computed, 8 quantises it by one scale and zero "
                "for K and one for V of each layer, which the prompt fixes");
  schema.Gone("link_transport", "tcp", "workers reach each other over TCP, in RDMA networks too");
  schema.Gone("handoff", "link",
              "slices travel over the workers' links: give decode workers a link_port that firewalls let through");
  DeclareProcessOptions(schema, options.process);
}

absl::StatusOr<LaneChoice> ParseLaneChoice(absl::string_view option, const std::string& text) {
  using Mode = LaneChoice::Mode;
  if (text == "auto") return LaneChoice{Mode::kAuto};
  if (text == "off") return LaneChoice{Mode::kOff};
  LaneChoice fixed{Mode::kFixed};
  if (!absl::SimpleAtoi(text, &fixed.tokens) || fixed.tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": '", Printable(text), "' is neither auto, off, nor a number of tokens"));
  }
  return fixed;
}

absl::Status CheckWorkerOptions(const WorkerOptions& options) {
  RUNAHEAD_RETURN_IF_ERROR(ParseLaneChoice("recompute", options.recompute).status());
  RUNAHEAD_RETURN_IF_ERROR(ParseLaneChoice("host_lane", options.host_lane).status());
  RUNAHEAD_RETURN_IF_ERROR(CheckStepRows(options));
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
  for (const auto& [name, us] : {std::pair("emulated_call_us", options.emulated_call_us),
                                 std::pair("emulated_launch_us", options.emulated_launch_us)}) {
    if (us > 0 && options.emulated_link_gbps == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": give emulated_link_gbps besides: without a link the CPU stands for no GPU"));
    }
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
    return absl::InvalidArgumentError(
        "static_window: reads KV from the store as it is computed: give kv_bits: 16, and static_window_bits: 8 where "
        "the "
        "window's own rows are to be quantised");
  }
  if (options.static_window > 0 && options.keep_beginnings == "on") {
    return absl::InvalidArgumentError(
        "keep_beginnings: what static_window decodes is in its windows alone, where no prompt can begin with it: leave "
        "one of them out");
  }
  if (options.static_window_reserve > 0 && options.static_window == 0) {
    return absl::InvalidArgumentError("static_window_reserve: give static_window besides: it is the reserve of that");
  }
  if (options.static_window_bits != "16" && options.static_window == 0) {
    return absl::InvalidArgumentError("static_window_bits: give static_window besides: it is about that window's rows");
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
