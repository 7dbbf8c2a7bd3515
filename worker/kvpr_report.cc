#include "worker/kvpr_report.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "server/base/printable.h"

namespace runahead {

KvprObservation ObservationOf(const KvprStep& step, const LaneCosts& costs, int64_t layers) {
  const LaneRows& rows = step.plan.rows;
  KvprObservation seen;
  seen.recompute_s = step.times->Busy(StepLane::kRecompute);
  seen.transfer_s = step.times->Busy(StepLane::kLink);
  seen.overlap_ratio = step.times->OverlapRatio();
  const double link_bytes = costs.other_link_bytes + costs.x_bytes * static_cast<double>(rows.x_streamed) +
                            costs.kv_bytes * static_cast<double>(rows.streamed);
  const double link_s = step.times->LinkSeconds();
  if (link_s > 0) seen.link_bytes_per_s = link_bytes * static_cast<double>(layers) / link_s;
  seen.predicted_s = step.plan.times.layer_s * static_cast<double>(layers);
  seen.measured_s = step.times->DeviceSeconds();
  seen.bound = BoundOf(step.plan.times);
  seen.rest = step.rest;
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
  const auto most = std::max_element(report.bound_by.begin(), report.bound_by.end());
  std::string lane(LaneBoundName(static_cast<LaneBound>(most - report.bound_by.begin())));
  std::replace(lane.begin(), lane.end(), '_', ' ');
  const double steps_ms = 1e3 / static_cast<double>(report.steps);
  std::string line = absl::StrFormat(
      "request %s, lease %016x: %d steps; of %.0f positions a step %.0f recomputed, %.0f copied, %.0f attended on the "
      "host, %.0f resident; overlap %.2f; a step took %.3g ms, predicted %.3g, bound by "
      "%s in %d of them",
      Printable(report.request_id), report.lease, report.steps,
      mean(report.recomputed + report.streamed + report.on_host + report.resident), mean(report.recomputed),
      mean(report.streamed), mean(report.on_host), mean(report.resident),
      report.overlap / static_cast<double>(report.steps), report.measured_s * steps_ms, report.predicted_s * steps_ms,
      lane, *most);
  if (report.rests > 0) absl::StrAppendFormat(&line, "; %d steps without the solver's split", report.rests);
  if (report.rest == SplitRest::kNoGain || report.rest == SplitRest::kSlower) {
    absl::StrAppendFormat(&line, ", %s for %s", SplitRestName(report.rest),
                          absl::FormatDuration(absl::Trunc(report.rest_for, absl::Milliseconds(1))));
  }
  return line;
}

}  // namespace runahead
