#include "worker/lane_profiler.h"

#include <cmath>
#include <string>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"
#include "worker/decode/kvpr/host_profile.h"

namespace runahead {
namespace {

constexpr int kRunsAgain = 2;

std::string SharedText(double host_bytes_per_s) {
  if (!std::isfinite(host_bytes_per_s)) return "; copies do not slow it down";
  return absl::StrFormat("; copies and it share %.0f MB/s", host_bytes_per_s / 1e6);
}

void LogProfile(const LaneProfile& profile) {
  std::string rates;
  for (const LinkRate& rate : profile.link) {
    absl::StrAppendFormat(&rates, "%s%d KiB %.0f there, %.0f back", rates.empty() ? "" : "; ", rate.block_bytes >> 10,
                          rate.to_device / 1e6, rate.to_host / 1e6);
  }
  LogInfo("kvpr",
          absl::StrFormat("link, MB/s by block: %s; a small copy takes %.0f us. A layer: projections and MLP %.2f ms, "
                          "attention %.3f us a position, recomputation %.3f us a position",
                          rates, 1e6 * profile.copy_latency_s, 1e3 * profile.costs.project_s,
                          1e6 * profile.costs.attend_s, 1e6 * profile.costs.recompute_s));
  if (!std::isfinite(profile.costs.host_attend_s)) return;
  LogInfo("kvpr", absl::StrFormat("host lane: attention %.3f us a position, the way there and back %.0f us%s",
                                  1e6 * profile.costs.host_attend_s, 1e6 * profile.costs.signal_s,
                                  SharedText(profile.costs.host_bytes_per_s)));
}

}  // namespace

LaneSpeeds SpeedsOf(const LaneCosts& costs) {
  LaneSpeeds seen{.project_s = costs.project_s, .recompute_s = costs.recompute_s, .attend_s = costs.attend_s};
  if (!std::isfinite(costs.host_attend_s)) return seen;
  seen.signal_s = costs.signal_s;
  seen.host_bytes_per_s = costs.kv_bytes / costs.host_attend_s;
  if (std::isfinite(costs.host_bytes_per_s)) seen.host_shared_bytes_per_s = costs.host_bytes_per_s;
  return seen;
}

absl::Status LaneProfiler::MeasureHost(int runs) {
  if (host_.device == nullptr) return absl::OkStatus();
  const std::unique_ptr<Stream> stream = host_.device->NewStream("profile");
  return MeasureHostLane(model_, device_, {*host_.device, *stream, host_.emulated_gbps}, profile_.costs, runs);
}

void LaneProfiler::Show() {
  for (const LinkRate& rate : profile_.link) metrics_.SetLinkRate(rate.block_bytes, rate.to_device, rate.to_host);
  metrics_.SetLinkLatency(profile_.copy_latency_s);
  metrics_.SetLinkBandwidth(profile_.costs.link_bytes_per_s);
  metrics_.SetLanes(SpeedsOf(profile_.costs));
  measured_at_ = clock_.Now();
}

absl::StatusOr<LaneProfile> LaneProfiler::Measure(const LaneProfileOptions& options) {
  RUNAHEAD_ASSIGN_OR_RETURN(profile_, MeasureLanes(model_, device_, options));
  RUNAHEAD_RETURN_IF_ERROR(MeasureHost(kHostRuns));
  LogProfile(profile_);
  Show();
  return profile_;
}

void LaneProfiler::MeasureAgain(SplitSource& split) {
  if (clock_.Now() - measured_at_ < kAgain) return;
  const LaneProfile before = profile_;
  const LaneCosts seen = split.costs();
  // What steps have measured of the other lanes stays.
  profile_.costs.project_s = seen.project_s;
  profile_.costs.attend_s = seen.attend_s;
  profile_.costs.recompute_s = seen.recompute_s;
  if (!MeasureLinkAgain(model_, device_, profile_).ok() || !MeasureHost(kRunsAgain).ok()) {
    profile_ = before;
    return;
  }
  split.Restart(profile_.costs);
  Show();
}

}  // namespace runahead
