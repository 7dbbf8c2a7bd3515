// The prefill role of a worker process: edges, hand-off, stage and control, wired.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/peer_comm.h"
#include "server/base/progress_meter.h"
#include "worker/handoff/decode_paths.h"
#include "worker/handoff/handoff.h"
#include "worker/handoff/slice_receiver.h"
#include "worker/handoff/slice_sender.h"
#include "worker/link/message/edge_staging.h"
#include "worker/link/message_engine.h"
#include "worker/link/staging_lane.h"
#include "worker/metrics/prefill_metrics.h"
#include "worker/options.h"
#include "worker/prefill/service/prefill_control.h"
#include "worker/prefill/stage.h"

namespace runahead {

// What the role gets done, whatever the epoch.
struct PrefillProgress {
  std::shared_ptr<ProgressMeter> stage = std::make_shared<ProgressMeter>();
  // Copies between a device whose memory the host cannot read and pinned memory.
  StagingMeters staging = {std::make_shared<ProgressMeter>(), std::make_shared<ProgressMeter>()};
  std::shared_ptr<ProgressMeter> staged_handoff = std::make_shared<ProgressMeter>();
  std::shared_ptr<ProgressMeter> staged_prefix = std::make_shared<ProgressMeter>();
  // Into the own store, and of a prefix out of it.
  std::shared_ptr<ProgressMeter> copies = std::make_shared<ProgressMeter>();
  std::shared_ptr<ProgressMeter> prefix_copies = std::make_shared<ProgressMeter>();
};

class PrefillRole {
 public:
  // All references outlive the role. `peer_comms` is null where there is no link from `device` to other GPUs.
  // `own_store`, where this process decodes too, takes its slices without a link. `memory` is AllocateMemory's.
  // `prefill_memory` of `options` is not 0.
  static absl::StatusOr<std::unique_ptr<PrefillRole>> Create(const WorkerOptions& options, Device& device,
                                                             std::shared_ptr<const Model> model, MessageEngine& engine,
                                                             PeerCommFactory* peer_comms, SliceReceiver* own_store,
                                                             std::shared_ptr<Buffer> memory, MetricRegistry& registry,
                                                             const PrefillProgress& progress,
                                                             std::shared_ptr<GrammarSource> grammars);
  // Bytes that `prefill_memory: 0` stands for: two prompts of the model's context, at most 4 GiB, and a quarter of the
  // host's memory where the device computes in that.
  static int64_t DefaultMemory(const Model& model, const Device& device);
  // The layer buffers' memory, which one role after the other uses. RESOURCE_EXHAUSTED when the device has none.
  static absl::StatusOr<std::shared_ptr<Buffer>> AllocateMemory(const WorkerOptions& options, Device& device);
  // Ends its jobs; links may work or not.
  ~PrefillRole();

  PrefillControl& control() { return *control_; }
  // Where the stage's reports go; set before the first command comes.
  void BindReports(std::function<void(v1::ControlReport)> report);
  int64_t max_prefix_tokens() const { return stage_->max_prefix_tokens(); }
  int64_t max_prefix_tokens_with_x() const { return stage_->max_prefix_tokens_with_x(); }

 private:
  // Of slices that go and of a prefix that comes, where the host cannot read the device's memory. Ends after who sends
  // and loads them.
  struct SliceStaging {
    ~SliceStaging() {
      for (const auto& lane : {going, coming}) {
        if (lane != nullptr) lane->Stop();
      }
    }
    std::shared_ptr<StagingLane> going, coming;
  };
  static std::unique_ptr<DecodePaths> MakePaths(const SliceStaging& staging, std::shared_ptr<SliceTransport> transport,
                                                MessageEngine& engine, SliceReceiver* own_store,
                                                PrefillMetrics& metrics, const PrefillProgress& progress);

  PrefillRole() = default;
  std::unique_ptr<PrefillMetrics> metrics_;
  std::unique_ptr<EdgeFactory> edges_;
  SliceStaging slice_staging_;
  std::shared_ptr<SliceTransport> transport_;
  std::unique_ptr<DecodePaths> paths_;
  std::unique_ptr<PrefillControl> control_;
  std::unique_ptr<PrefillStage> stage_;
};

}  // namespace runahead
