#include "worker/worker_epoch.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "kernels/base/status_macros.h"
#include "server/base/version.h"
#include "server/rpc/transport_options.h"
#include "worker/kv/store.h"
#include "worker/lane_profiler.h"
#include "worker/link/tcp/tcp_engine.h"
#include "worker/model/x_form.h"
#include "worker/service/proto_convert.h"

namespace runahead {
namespace {

// How K and V of a token lie in a row (KvSpan); workers that read each other's rows must say the same.
constexpr char kKvRowOrder[] = "token-major k|v";

v1::LaneProfile ToProto(const LaneProfile& profile) {
  v1::LaneProfile proto;
  for (const LinkRate& rate : profile.link) {
    v1::LaneProfile::LinkRate& link = *proto.add_link();
    link.set_block_bytes(rate.block_bytes);
    link.set_to_device_bytes_per_s(rate.to_device);
    link.set_to_host_bytes_per_s(rate.to_host);
  }
  const LaneSpeeds speeds = SpeedsOf(profile.costs);
  proto.set_copy_latency_s(profile.copy_latency_s);
  proto.set_project_s(speeds.project_s);
  proto.set_attend_s(speeds.attend_s);
  proto.set_recompute_s(speeds.recompute_s);
  proto.set_signal_s(speeds.signal_s);
  proto.set_host_bytes_per_s(speeds.host_bytes_per_s);
  proto.set_host_shared_bytes_per_s(speeds.host_shared_bytes_per_s);
  return proto;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerEpoch>> WorkerEpoch::Begin(const EpochParts& parts, uint32_t epoch) {
  const WorkerOptions& options = parts.options;
  std::unique_ptr<WorkerEpoch> begun(new WorkerEpoch(parts));
  TcpOptions engine;
  engine.incarnation = parts.incarnation;
  engine.epoch = epoch;
  engine.host = parts.link_host;
  engine.port = static_cast<int>(options.link_port);
  engine.key = parts.key;
  engine.tls = parts.link_tls;
  begun->link_commands_ = std::make_shared<CommandQueue>(parts.links_progress);
  engine.commands = begun->link_commands_;
  RUNAHEAD_ASSIGN_OR_RETURN(begun->engine_, TcpEngine::Start(engine));
  if (parts.decode != nullptr) parts.decode->BeginEpoch(*begun->engine_);
  if (options.prefill()) {
    SliceReceiver* const own_store = parts.decode != nullptr ? &parts.decode->receiver() : nullptr;
    RUNAHEAD_ASSIGN_OR_RETURN(
        begun->prefill_, PrefillRole::Create(options, parts.device, parts.model, *begun->engine_, parts.peer_comms,
                                             own_store, parts.prefill_memory, parts.metrics, parts.prefill_progress, parts.grammars));
    begun->prefill_->BindReports(parts.report);
  }
  return begun;
}

// The links go first: what waits for another worker, who may hang, fails then, and nothing is waited for in vain.
WorkerEpoch::~WorkerEpoch() {
  if (engine_ != nullptr) engine_->Stop();
  prefill_.reset();
  if (parts_.decode != nullptr) parts_.decode->EndEpoch();
}

v1::Capabilities WorkerEpoch::capabilities() const {
  const ModelConfig& config = parts_.model->config();
  const AttentionShape& shape = parts_.model->attention(0);
  v1::Capabilities capabilities;
  capabilities.set_protocol_version(kProtocolVersion);
  capabilities.set_incarnation(parts_.incarnation);
  capabilities.set_epoch(engine_->self().epoch);
  if (prefill_ != nullptr) capabilities.add_roles(v1::WORKER_ROLE_PREFILL);
  if (parts_.decode != nullptr) capabilities.add_roles(v1::WORKER_ROLE_DECODE);
  capabilities.set_name(parts_.options.name);
  capabilities.set_device(std::string(parts_.device.name()));
  capabilities.set_model_fingerprint(parts_.fingerprints.files);
  capabilities.set_weights_fingerprint(parts_.fingerprints.weights);
  capabilities.set_tokenizer_fingerprint(parts_.fingerprints.tokenizer);
  capabilities.set_chat_template_fingerprint(parts_.fingerprints.chat_template);
  capabilities.set_compute_dtype(std::string(parts_.device.numerics()));
  capabilities.set_kv_dtype(std::string(DTypeName(shape.kv_dtype)));
  capabilities.set_context_length(static_cast<int32_t>(config.context_length));
  capabilities.set_layers(static_cast<int32_t>(config.layers));
  capabilities.set_kv_row_bytes(static_cast<int32_t>(shape.kv_row_bytes()));
  capabilities.set_kv_block_tokens(static_cast<int32_t>(kKvBlockTokens));
  capabilities.set_kv_heads(static_cast<int32_t>(shape.kv_heads));
  capabilities.set_head_dim(static_cast<int32_t>(shape.head_dim));
  capabilities.set_kv_row_order(kKvRowOrder);
  const RowForm x_form = XFormOf(*parts_.model, parts_.device);
  capabilities.set_x_form(std::string(RowFormName(x_form)));
  capabilities.set_x_row_bytes(static_cast<int32_t>(RowFormBytes(x_form, config.hidden)));
  for (const int64_t window : parts_.model->windows()) {
    if (window == 0) continue;
    capabilities.set_window_layers(capabilities.window_layers() + 1);
    capabilities.set_window(std::max(capabilities.window(), static_cast<int32_t>(window)));
  }
  capabilities.set_build(BuildId());
  capabilities.set_link_address(engine_->self().address);
  if (parts_.peer_comms != nullptr) capabilities.set_device_link(parts_.peer_comms->identity());
  if (parts_.decode != nullptr) {
    capabilities.set_kv_capacity_tokens(parts_.decode->capacity_tokens());
    capabilities.set_max_batch(static_cast<int32_t>(parts_.decode->max_batch()));
    capabilities.set_moves(parts_.decode->moves());
    capabilities.set_keeps_beginnings(parts_.decode->keeps_beginnings());
    capabilities.set_lends_beginnings(parts_.decode->lends_beginnings());
  }
  if (parts_.decode != nullptr && parts_.decode->lane_profile().has_value()) {
    *capabilities.mutable_lane_profile() = ToProto(*parts_.decode->lane_profile());
  }
  if (prefill_ != nullptr) {
    capabilities.set_max_prefix_tokens(prefill_->max_prefix_tokens());
    capabilities.set_max_prefix_tokens_with_x(prefill_->max_prefix_tokens_with_x());
  }
  return capabilities;
}

void WorkerEpoch::OnFormLine(const v1::FormLine& line) {
  // One that hangs keeps its connections; hand-off to or from it would hold memory for as long.
  const auto is_lost = [&line](const PeerKey& key) {
    return absl::c_any_of(line.lost(), [&key](const v1::WorkerLife& lost) {
      return lost.incarnation() == key.incarnation && lost.epoch() == key.epoch;
    });
  };
  if (line.lost_size() > 0) engine_->CloseAll(is_lost);
  if (prefill_ != nullptr) prefill_->control().OnFormLine(line);
}

void WorkerEpoch::OnStart(const v1::StartJob& start) {
  if (prefill_ != nullptr) prefill_->control().OnStart(start);
}

void WorkerEpoch::OnCancel(uint64_t job) {
  if (prefill_ != nullptr) prefill_->control().OnCancel(job);
}

void WorkerEpoch::OnRelease(const v1::LeaseId& lease) {
  if (parts_.decode != nullptr) parts_.decode->Release(LeaseFromProto(lease));
}

void WorkerEpoch::OnMove(const v1::MoveSequence& move) {
  if (parts_.decode == nullptr) return;
  MoveTarget target{.lease = LeaseFromProto(move.target_lease())};
  target.peer.address = move.target().link_address();
  target.peer.incarnation = move.target().incarnation();
  target.peer.epoch = move.target().epoch();
  parts_.decode->Move(LeaseFromProto(move.lease()), target, move.most_tokens());
}

void WorkerEpoch::OnPing() {
  // Something to do for the links' thread: what it gets done shows, though it may only have to receive.
  link_commands_->Post([] {});
  if (prefill_ != nullptr) prefill_->control().OnPing();
}

}  // namespace runahead
