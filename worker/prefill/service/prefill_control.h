// The prefill role behind the control stream: commands become jobs and edges, a job's news become reports.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kernels/base/mutex.h"
#include "server/base/prefill_metrics.h"
#include "worker/prefill/stage.h"
#include "worker/service/control_service.h"

namespace runahead {

// Commands come from the control thread, the stage's news from its threads.
class PrefillControl : public ControlHandler, public PrefillObserver {
 public:
  // All references outlive the control. Bind must follow before any command comes.
  PrefillControl(EdgeFactory& edges, HandoffRoute route, PrefillMetrics& metrics, MetricRegistry& registry)
      : edges_(edges), route_(route), metrics_(metrics), registry_(registry) {}
  void Bind(PrefillStage* stage, std::function<void(v1::ControlReport)> report);

  void OnFormLine(const v1::FormLine& line) override;
  void OnStart(const v1::StartJob& start) override;
  void OnCancel(uint64_t job) override;
  void OnRelease(const v1::LeaseId& lease) override;
  void OnRouterGone() override;

  void OnFirstToken(const PrefillJob& job, const Sampled& token, double queue_s, double prefill_s) override;
  void OnDone(const PrefillJob& job, const absl::Status& status, const JobTimes& times) override;

 private:
  std::shared_ptr<Edge> EdgeTo(const v1::PeerAddress& address, const char* what);
  static void ReportDone(const std::function<void(v1::ControlReport)>& report, JobId job, const absl::Status& status,
                         const JobTimes& times);

  EdgeFactory& edges_;
  const HandoffRoute route_;
  PrefillMetrics& metrics_;
  MetricRegistry& registry_;  // for what is counted by neighbour
  PrefillStage* stage_ = nullptr;
  std::function<void(v1::ControlReport)> report_;
  // Of the control thread. Edges to all who were neighbours and live, by incarnation: the line may put others between,
  // and a router that was restarted forms it anew, one worker after the other.
  absl::flat_hash_map<uint64_t, std::pair<PeerId, std::shared_ptr<Edge>>> known_;
  std::shared_ptr<Edge> predecessor_, successor_;
  std::string predecessor_name_, successor_name_;
};

}  // namespace runahead
