// The decode role of a worker process: store, reaper, hand-off receiver, engine and service, wired.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/progress_meter.h"
#include "worker/decode/engine.h"
#include "worker/decode/kvpr/profile.h"
#include "worker/decode/service/decode_service.h"
#include "worker/decode/service/kept_kv_service.h"
#include "worker/decode/slice_carrier.h"
#include "worker/decode/store_report.h"
#include "worker/handoff/epoch_sender.h"
#include "worker/handoff/message_handoff.h"
#include "worker/handoff/message_prefix.h"
#include "worker/handoff/slice_receiver.h"
#include "worker/kv/lease_reaper.h"
#include "worker/kv/store.h"
#include "worker/link/message_engine.h"
#include "worker/metrics/decode_metrics.h"
#include "worker/options.h"

namespace runahead {

class DecodeRole {
 public:
  // All references outlive the role. `incarnation` is the process's. `options` passed CheckKvprOptions. Steps take
  // `step_rows` rows of prompts; 0: none, because of `no_rows_because`. INVALID_ARGUMENT where steps bring KV over a
  // link.
  static absl::StatusOr<std::unique_ptr<DecodeRole>> Create(const WorkerOptions& options, Device& device,
                                                            std::shared_ptr<const Model> model, uint64_t incarnation,
                                                            int64_t step_rows, std::string no_rows_because,
                                                            std::shared_ptr<GrammarSource> grammars,
                                                            MetricRegistry& registry);

  // Slices come over `engine` from now on, and leases are of its epoch. It lives until EndEpoch.
  void BeginEpoch(MessageEngine& engine);
  // Ends all leases and calls, and takes no slices any more. What runs ends at its next step.
  void EndEpoch();

  void Release(const LeaseId& lease);
  // As worker.proto says of MoveSequence, over the links of this epoch.
  void Move(const LeaseId& lease, const MoveTarget& target, int64_t most_tokens);
  // Whether its sequences can move (DecodeEngine::CheckMoves).
  bool moves() const { return engine_->CheckMoves().ok(); }
  bool keeps_beginnings() const { return engine_->CheckKnown().ok(); }
  bool lends_beginnings() const { return engine_->CheckLends().ok(); }
  DecodeService& service() { return *service_; }
  KeptKvService& kept_service() { return *kept_service_; }
  // Where slices of this very process go.
  SliceReceiver& receiver() { return *receiver_; }
  // What was measured of the device's link; none where KV does not come over one.
  const std::optional<LaneProfile>& lane_profile() const { return lane_profile_; }
  // Of its steps.
  const std::shared_ptr<ProgressMeter>& progress() const { return progress_; }
  // Says what hand-off over links gets done.
  const std::shared_ptr<ProgressMeter>& arrival_progress() const { return arrival_progress_; }
  // Of copies between a device whose memory the host cannot read and pinned memory, where sequences move away or chains
  // get beginnings.
  const std::shared_ptr<ProgressMeter>& staged_moves_progress() const { return staged_moves_progress_; }
  int64_t capacity_tokens() const { return store_->arena().blocks() * kKvBlockTokens; }  // in whole blocks
  // Sequences that its steps take together.
  int64_t max_batch() const { return max_batch_; }

 private:
  DecodeRole() = default;
  const std::shared_ptr<ProgressMeter> progress_ = std::make_shared<ProgressMeter>();
  const std::shared_ptr<ProgressMeter> arrival_progress_ = std::make_shared<ProgressMeter>();
  const std::shared_ptr<ProgressMeter> staged_moves_progress_ = std::make_shared<ProgressMeter>();
  Device* device_ = nullptr;
  // In the order of construction; destroyed in reverse. The link's receiver is an epoch's.
  std::unique_ptr<DecodeMetrics> metrics_;
  std::optional<LaneProfile> lane_profile_;
  int64_t max_batch_ = 0;
  std::shared_ptr<Device> host_;  // computes on host memory beside the device; null: not needed
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<StoreReport> report_;
  std::unique_ptr<LeaseReaper> reaper_;
  std::unique_ptr<SliceReceiver> receiver_;
  std::unique_ptr<MessageHandoffReceiver> link_receiver_;
  std::shared_ptr<EpochSender> moves_;       // an epoch's, too; what is moved may hold it for longer
  std::unique_ptr<PrefixLender> lender_;     // an epoch's; null: nothing is lent
  std::shared_ptr<StagingLane> moves_lane_;  // of what leaves the store; null: the host reads its memory
  RowForm kv_form_ = RowForm::kF32;
  std::unique_ptr<DecodeEngine> engine_;
  std::unique_ptr<DecodeService> service_;
  std::unique_ptr<KeptKvService> kept_service_;
};

}  // namespace runahead
