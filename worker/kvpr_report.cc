#include "worker/kvpr_report.h"

#include "absl/strings/str_format.h"
#include "server/base/printable.h"

namespace runahead {

KvprObservation ObservationOf(const KvprStep& step, const LaneCosts& costs, int64_t layers) {
  const LaneRows& rows = step.plan.rows;
  KvprObservation seen;
  seen.recompute_s = step.times->Busy(StepLane::kRecompute);
  seen.transfer_s = step.times->Busy(StepLane::kLink);
  seen.overlap_ratio = step.times->OverlapRatio();
  if (!step.plan.cuts.empty()) {
    seen.split_tokens = static_cast<double>(rows.recomputed) / static_cast<double>(step.plan.cuts.size());
  }
  const auto bytes = [&](int64_t tokens, double each) {
    return static_cast<int64_t>(static_cast<double>(tokens * layers) * each);
  };
  seen.lanes[static_cast<int>(KvLane::kRecomputed)] = {rows.recomputed, bytes(rows.x_streamed, costs.x_bytes),
                                                       seen.recompute_s};
  seen.lanes[static_cast<int>(KvLane::kStreamed)] = {rows.streamed, bytes(rows.streamed, costs.kv_bytes),
                                                     seen.transfer_s};
  seen.lanes[static_cast<int>(KvLane::kHost)] = {rows.host, bytes(rows.host, costs.kv_bytes),
                                                 step.times->Busy(StepLane::kHost)};
  seen.lanes[static_cast<int>(KvLane::kResident)] = {rows.resident, 0, step.times->Busy(StepLane::kWindow)};
  return seen;
}

std::string SequenceLine(const KvprSequenceReport& report) {
  const auto mean = [&](int64_t positions) {
    return static_cast<double>(positions) / static_cast<double>(report.steps);
  };
  return absl::StrFormat(
      "request %s, lease %016x: %d steps; of %.0f positions a step %.0f recomputed, %.0f copied, %.0f attended on the "
      "host, %.0f resident; overlap %.2f",
      Printable(report.request_id), report.lease, report.steps,
      mean(report.recomputed + report.streamed + report.on_host + report.resident), mean(report.recomputed),
      mean(report.streamed), mean(report.on_host), mean(report.resident),
      report.overlap / static_cast<double>(report.steps));
}

}  // namespace runahead
