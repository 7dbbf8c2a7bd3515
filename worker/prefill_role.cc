#include "worker/prefill_role.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"
#include "server/base/memory_limit.h"
#include "worker/handoff/in_process_handoff.h"
#include "worker/handoff/in_process_prefix.h"
#include "worker/handoff/message_handoff.h"
#include "worker/handoff/message_prefix.h"
#include "worker/handoff/slice_sender.h"
#include "worker/link/message/message_edge.h"
#include "worker/link/paced_edge.h"
#include "worker/memory_defaults.h"

namespace runahead {
namespace {

absl::Status CheckMemory(int64_t tokens, const Model& model) {
  const ModelConfig& config = model.config();
  if (tokens == 0) {
    const int64_t least = 2 * kMinLayerSlots * model.kv_row_bytes();
    return absl::InvalidArgumentError(
        absl::StrCat("prefill_memory: does not hold a single token, of which each takes at least ", least, " bytes"));
  }
  if (tokens < config.context_length) {
    LogWarning("prefill", "prefill_memory holds prompts of up to ", tokens, " tokens, the model's context is ",
               config.context_length, ": longer ones are refused");
  }
  return absl::OkStatus();
}

// Each worker draws differently, even where all are given the same seed.
LinkNoise NoiseOf(const WorkerOptions& options) {
  uint64_t seed = static_cast<uint64_t>(options.chain_link_noise_seed);
  for (const unsigned char c : options.name) seed = (seed ^ c) * 0x100000001b3;  // FNV-1a
  return {options.chain_link_noise, options.chain_link_noise_factor, seed};
}

// Slices for the store of this very process are copied; all others go over links.
class OwnStoreFirst : public HandoffSender {
 public:
  OwnStoreFirst(PeerKey self, std::unique_ptr<HandoffSender> own, std::unique_ptr<HandoffSender> others)
      : self_(self), own_(std::move(own)), others_(std::move(others)) {}
  Event Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) override {
    HandoffSender& sender = decode.key() == self_ ? *own_ : *others_;
    return sender.Push(decode, slice, std::move(bytes), after);
  }
  void Cancel(const LeaseId& lease) override {
    own_->Cancel(lease);
    others_->Cancel(lease);
  }

 private:
  const PeerKey self_;
  const std::unique_ptr<HandoffSender> own_, others_;
};

// A prefix in the store of this very process is copied; all others come over links.
class OwnPrefixFirst : public PrefixLoader {
 public:
  OwnPrefixFirst(PeerKey self, std::unique_ptr<PrefixLoader> own, std::unique_ptr<PrefixLoader> others)
      : self_(self), own_(std::move(own)), others_(std::move(others)) {}
  Event Load(const PeerId& decode, const Slice& rows, BufferRef into) override {
    PrefixLoader& loader = decode.key() == self_ ? *own_ : *others_;
    return loader.Load(decode, rows, std::move(into));
  }
  void Drop(const LeaseId& lease) override {
    own_->Drop(lease);
    others_->Drop(lease);
  }

 private:
  const PeerKey self_;
  const std::unique_ptr<PrefixLoader> own_, others_;
};

// Pinned memory that the frames or slices of one direction pass through, chunk by chunk: enough for several at once,
// for pinned memory is taken from all others.
constexpr size_t kStagingBytes = size_t{64} << 20;

std::unique_ptr<EdgeFactory> MakeEdges(const WorkerOptions& options, Device& device, MessageEngine& engine,
                                       PeerCommFactory* peer_comms, const PrefillProgress& progress,
                                       PrefillMetrics& metrics) {
  const FrameFaults faults{.on_corrupt = [&metrics] { metrics.CountDamagedFrame(); },
                           .on_retry = [&metrics] { metrics.CountFrameRetry(); }};
  std::unique_ptr<EdgeFactory> edges = std::make_unique<MessageEdgeFactory>(
      engine, EdgesOf(device, kStagingBytes, peer_comms, faults, progress.staging));
  if (options.chain_link_gbps > 0) {
    edges =
        std::make_unique<PacedEdgeFactory>(std::move(edges), options.chain_link_gbps, RealClock(), NoiseOf(options));
  }
  return edges;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrefillRole>> PrefillRole::Create(
    const WorkerOptions& options, Device& device, std::shared_ptr<const Model> model, MessageEngine& engine,
    PeerCommFactory* peer_comms, SliceReceiver* own_store, std::shared_ptr<Buffer> memory, MetricRegistry& registry,
    const PrefillProgress& progress, std::shared_ptr<GrammarSource> grammars) {
  std::unique_ptr<PrefillRole> role(new PrefillRole);
  role->metrics_ = std::make_unique<PrefillMetrics>(registry);
  PrefillMetrics& metrics = *role->metrics_;
  role->edges_ = MakeEdges(options, device, engine, peer_comms, progress, metrics);
  if (!device.host_reads_device_memory()) {
    SliceStaging& staging = role->slice_staging_;
    staging.going = StagingLane::Create(device, "handoff", kStagingBytes, progress.staged_handoff);
    staging.going->Prepare();
    // Its memory is taken when one comes.
    staging.coming = StagingLane::Create(device, "prefix", kStagingBytes, progress.staged_prefix);
  }
  role->transport_ = MakeMessageSliceTransport(engine);
  role->paths_ = MakePaths(role->slice_staging_, role->transport_, engine, own_store, metrics, progress);
  role->control_ = std::make_unique<PrefillControl>(*role->edges_, *role->paths_, metrics, registry);

  PrefillStageOptions stage;
  stage.memory_bytes = static_cast<size_t>(options.prefill_memory);
  stage.memory = std::move(memory);
  stage.progress = progress.stage;
  stage.grammars = std::move(grammars);
  stage.on_memory = [&metrics](int64_t bytes) { metrics.SetBufferBytes(bytes); };
  stage.on_pass = [&metrics](int64_t prompts) { metrics.ObservePass(prompts); };
  RUNAHEAD_ASSIGN_OR_RETURN(role->stage_, PrefillStage::Create(stage, device, model, *role->paths_, *role->control_));
  RUNAHEAD_RETURN_IF_ERROR(CheckMemory(role->max_prefix_tokens(), *model));
  return role;
}

std::unique_ptr<DecodePaths> PrefillRole::MakePaths(const SliceStaging& staging,
                                                    std::shared_ptr<SliceTransport> transport, MessageEngine& engine,
                                                    SliceReceiver* own_store, PrefillMetrics& metrics,
                                                    const PrefillProgress& progress) {
  HandoffSenderOptions slices = CountedBy(metrics);
  slices.lane = staging.going;
  std::unique_ptr<HandoffSender> sender = std::make_unique<SliceSender>(std::move(transport), slices);
  std::unique_ptr<PrefixLoader> prefixes = MakeMessagePrefixLoader(
      engine, {.lane = staging.coming, .on_damaged = [&metrics] { metrics.CountDamagedFrame(); }});
  if (own_store != nullptr) {
    const PeerKey self = engine.self().key();
    auto own = std::make_unique<SliceSender>(MakeInProcessTransport(*own_store, progress.copies), slices);
    sender = std::make_unique<OwnStoreFirst>(self, std::move(own), std::move(sender));
    auto own_prefix = MakeInProcessPrefixLoader(own_store->store(), staging.coming, progress.prefix_copies);
    prefixes = std::make_unique<OwnPrefixFirst>(self, std::move(own_prefix), std::move(prefixes));
  }
  return std::make_unique<DecodePaths>(std::move(sender), std::move(prefixes));
}

// What waits for a worker that hangs would wait for ever: hand-off stops before the jobs are awaited, as edges do where
// the links have stopped.
PrefillRole::~PrefillRole() {
  if (transport_ != nullptr) transport_->Stop();
  stage_.reset();
}

int64_t PrefillRole::DefaultMemory(const Model& model, const Device& device) {
  const ModelConfig& config = model.config();
  const int64_t layers = std::max(config.layers, kMinLayerSlots);
  const int64_t two_prompts = 2 * layers * config.context_length * model.kv_row_bytes();
  const bool of_host = device.host_reads_device_memory();
  return runahead::DefaultMemory(std::min(kMostDefaultPrefillMemory, two_prompts),
                                 of_host ? UsableMemory() : std::numeric_limits<int64_t>::max());
}

absl::StatusOr<std::shared_ptr<Buffer>> PrefillRole::AllocateMemory(const WorkerOptions& options, Device& device) {
  return StageMemory::Allocate(static_cast<size_t>(options.prefill_memory), device);
}

void PrefillRole::BindReports(std::function<void(v1::ControlReport)> report) {
  control_->Bind(stage_.get(), std::move(report));
}

}  // namespace runahead
