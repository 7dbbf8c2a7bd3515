// The prefill role behind the control stream: commands become jobs and edges, a job's news become reports.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/worker.pb.h"
#include "worker/handoff/decode_paths.h"
#include "worker/metrics/prefill_metrics.h"
#include "worker/prefill/stage.h"

namespace runahead {

// Commands come from the control thread, the stage's news from its threads.
class PrefillControl : public PrefillObserver {
 public:
  // All references outlive the control. Bind must follow before any command comes.
  PrefillControl(EdgeFactory& edges, DecodePaths& paths, PrefillMetrics& metrics, MetricRegistry& registry)
      : edges_(edges), paths_(paths), metrics_(metrics), registry_(registry) {}
  void Bind(PrefillStage* stage, std::function<void(v1::ControlReport)> report);

  // As ControlHandler's.
  void OnFormLine(const v1::FormLine& line);
  void OnStart(const v1::StartJob& start);
  void OnCancel(uint64_t job);
  // Reports which edges and ways of hand-off opened, broke or work again since the last time.
  void OnPing() { ReportPaths(0); }

  void OnFirstToken(const PrefillJob& job, const Sampled& token, double queue_s, double prefill_s) override;
  void OnPromptScores(const PrefillJob& job, int64_t index, const std::vector<TokenLogprobPairs>& scores) override;
  void OnDone(const PrefillJob& job, const JobEnd& end, const JobTimes& times) override;

 private:
  struct Known {
    PeerId peer;
    std::string name;
    std::shared_ptr<Edge> edge;  // null: it could not be opened
    absl::Status failure;        // why
    v1::PathCondition told = v1::PATH_CONDITION_OPENING;
  };
  void OpenEdge(const v1::PeerAddress& address, const char* what);
  // The edge to that worker, in its last generation; null where it never was a neighbour, is gone, or could not be
  // reached.
  const Known* Find(const v1::WorkerLife& worker) const;
  // Those for which `meant` is true end; what waits for them fails.
  void CloseEdges(const std::function<bool(const PeerId&)>& meant);
  // Also answers the router's question of that number; 0: it has not asked, and hears nothing where nothing changed.
  void ReportPaths(uint64_t question);
  static void AddState(v1::PathStates& states, const PeerId& peer, v1::PathCondition condition,
                       const absl::Status& status);
  void ReportDone(const PrefillJob& job, const JobEnd& end);

  EdgeFactory& edges_;
  DecodePaths& paths_;
  PrefillMetrics& metrics_;
  MetricRegistry& registry_;  // for what is counted by neighbour
  PrefillStage* stage_ = nullptr;
  std::function<void(v1::ControlReport)> report_;
  // Of the control thread. Edges to all who were neighbours and live, in their last generation: the line may put others
  // between, also between the plan of a job and its Start, which names whom it means.
  absl::flat_hash_map<PeerKey, Known> known_;
};

}  // namespace runahead
