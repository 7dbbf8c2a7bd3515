#include "worker/prefill_role.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"
#include "server/base/memory_limit.h"
#include "server/rpc/member_call.h"
#include "worker/handoff/grpc_handoff.h"
#include "worker/handoff/in_process_handoff.h"
#include "worker/handoff/message_handoff.h"
#include "worker/handoff/metered_handoff.h"
#include "worker/handoff/retrying_sender.h"
#include "worker/handoff/staged_handoff.h"
#include "worker/link/line_edge_factory.h"
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

// Slices for the store of this very process are copied; all others take the route of the others.
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

// Pinned memory that the frames or slices of one direction pass through: a layer of the longest prompt, than which no
// frame is larger; but pinned memory is taken from all others, and what is larger gets memory of its own.
size_t StagingBytes(const Model& model) {
  constexpr int64_t kLeast = int64_t{16} << 20, kMost = int64_t{512} << 20;
  const int64_t layer = model.config().context_length * model.kv_row_bytes();
  return static_cast<size_t>(std::clamp(layer, kLeast, kMost));
}

std::unique_ptr<EdgeFactory> MakeEdges(const WorkerOptions& options, Device& device, const Model& model,
                                       MessageEngine& engine, PeerCommFactory* peer_comms, PrefillMetrics& metrics) {
  const FrameFaults faults{.on_corrupt = [&metrics] { metrics.CountDamagedFrame(); },
                           .on_retry = [&metrics] { metrics.CountFrameRetry(); }};
  std::unique_ptr<EdgeFactory> edges = NewLineEdgeFactory(engine, device, StagingBytes(model), peer_comms, faults);
  if (options.chain_link_gbps > 0) {
    edges =
        std::make_unique<PacedEdgeFactory>(std::move(edges), options.chain_link_gbps, RealClock(), NoiseOf(options));
  }
  return edges;
}

std::shared_ptr<SliceTransport> MakeTransport(HandoffRoute route, MessageEngine& engine, const ClusterKey& key) {
  if (route == HandoffRoute::kLink) return MakeMessageSliceTransport(engine);
  return MakeGrpcSliceTransport([key](const PeerId& decode) -> absl::StatusOr<std::shared_ptr<grpc::Channel>> {
    if (decode.address.empty()) return absl::UnavailableError("the router named no gRPC address of the decode worker");
    return MakeMemberChannel(decode.address, key);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrefillRole>> PrefillRole::Create(
    const WorkerOptions& options, Device& device, std::shared_ptr<const Model> model, MessageEngine& engine,
    PeerCommFactory* peer_comms, SliceReceiver* own_store, const ClusterKey& key, std::shared_ptr<Buffer> memory,
    MetricRegistry& registry, const PrefillProgress& progress) {
  std::unique_ptr<PrefillRole> role(new PrefillRole);
  role->metrics_ = std::make_unique<PrefillMetrics>(registry);
  PrefillMetrics& metrics = *role->metrics_;
  role->edges_ = MakeEdges(options, device, *model, engine, peer_comms, metrics);
  const HandoffSenderOptions retries{.on_retry = [&metrics] { metrics.CountHandoffRetry(); }};
  const HandoffRoute route = options.handoff == "grpc" ? HandoffRoute::kGrpc : HandoffRoute::kLink;
  role->transport_ = MakeTransport(route, engine, key);
  HandoffSenderOptions to_others = retries;
  to_others.progress = progress.handoff;
  std::unique_ptr<HandoffSender> sender = std::make_unique<RetryingSender>(role->transport_, to_others);
  if (own_store != nullptr) {
    auto own = std::make_unique<RetryingSender>(MakeInProcessTransport(*own_store), retries);
    sender = std::make_unique<OwnStoreFirst>(engine.self().key(), std::move(own), std::move(sender));
  }
  if (!device.host_reads_device_memory()) {
    sender = std::make_unique<StagedHandoff>(std::move(sender), device, StagingBytes(*model));
  }
  role->paths_ = std::make_unique<DecodePaths>(std::move(sender));
  role->metered_sender_ = std::make_unique<MeteredHandoff>(*role->paths_, metrics);
  role->control_ = std::make_unique<PrefillControl>(*role->edges_, *role->paths_, route, metrics, registry);

  PrefillStageOptions stage;
  stage.memory_bytes = static_cast<size_t>(options.prefill_memory);
  stage.memory = std::move(memory);
  stage.progress = progress.stage;
  stage.on_memory = [&metrics](int64_t bytes) { metrics.SetBufferBytes(bytes); };
  RUNAHEAD_ASSIGN_OR_RETURN(role->stage_,
                            PrefillStage::Create(stage, device, model, *role->metered_sender_, *role->control_));
  RUNAHEAD_RETURN_IF_ERROR(CheckMemory(role->max_prefix_tokens(), *model));
  return role;
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
