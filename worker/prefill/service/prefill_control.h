// The prefill role behind the control stream: commands become jobs and edges, a job's news become reports.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "kernels/base/mutex.h"
#include "server/base/prefill_metrics.h"
#include "worker/prefill/stage.h"
#include "worker/service/control_service.h"

namespace runahead {

// Commands come from the control thread, the stage's news from its threads.
class PrefillControl : public ControlHandler, public PrefillObserver {
 public:
  // All references outlive the control. Bind must follow before any command comes.
  PrefillControl(EdgeFactory& edges, PrefillMetrics& metrics, MetricRegistry& registry)
      : edges_(edges), metrics_(metrics), registry_(registry) {}
  void Bind(PrefillStage* stage, std::function<void(v1::ControlReport)> report);

  void OnFormLine(const v1::FormLine& line) override;
  void OnStart(const v1::StartJob& start) override;
  void OnCancel(uint64_t job) override;
  void OnRelease(const v1::LeaseId& lease) override;
  void OnRouterGone() override;

  void OnFirstToken(const PrefillJob& job, const Sampled& token, double queue_s, double prefill_s) override;
  void OnDone(const PrefillJob& job, const absl::Status& status, const JobTimes& times) override;

 private:
  struct Neighbour {
    PeerId peer;
    std::shared_ptr<Edge> edge;  // absent when it could not be opened
  };
  void Meet(std::optional<Neighbour>& neighbour, bool present, const v1::PeerAddress& address, const char* what);
  static void ReportDone(const std::function<void(v1::ControlReport)>& report, JobId job, const absl::Status& status,
                         const JobTimes& times);

  EdgeFactory& edges_;
  PrefillMetrics& metrics_;
  MetricRegistry& registry_;  // for what is counted by neighbour
  PrefillStage* stage_ = nullptr;
  std::function<void(v1::ControlReport)> report_;
  std::optional<Neighbour> predecessor_, successor_;  // of the control thread
};

}  // namespace runahead
