#include "scheduler/recompute/lane_costs.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr std::pair<SplitObjective, std::string_view> kObjectives[] = {{SplitObjective::kRow, "row"},
                                                                       {SplitObjective::kColumn, "column"},
                                                                       {SplitObjective::kPipelined, "pipelined"},
                                                                       {SplitObjective::kStep, "step"}};

absl::Status RefuseCost(const char* field, double value, const char* works) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is not possible; what works is ", works));
}

// What can be reached over the link alone.
double LinkSpeed(const LaneCosts& costs) {
  return std::min(costs.link_bytes_per_s, costs.host_bytes_per_s);
}

void AddStep(const LaneCosts& costs, const LaneRows& rows, LaneTimes* times) {
  const double on_device = static_cast<double>(rows.recomputed + rows.streamed + rows.resident);
  times->device_s += costs.project_s + costs.attend_s * on_device;
  if (rows.host == 0) return;
  const double begin = costs.project_s + costs.signal_s;
  const double attended = static_cast<double>(rows.host);
  times->host_s = begin + costs.host_attend_s * attended;
  const double copied_before = LinkSpeed(costs) * begin;
  const double bytes = LinkSpeed(costs) * times->link_s + costs.kv_bytes * attended;
  times->shared_s = begin + (bytes - copied_before) / costs.host_bytes_per_s;
}

constexpr std::string_view kBoundNames[kLaneBounds] = {"link", "device", "host", "host_memory"};

}  // namespace

std::string_view SplitObjectiveName(SplitObjective objective) {
  return kObjectives[static_cast<size_t>(objective)].second;
}

std::optional<SplitObjective> ParseSplitObjective(std::string_view name) {
  for (const auto& [objective, known] : kObjectives) {
    if (known == name) return objective;
  }
  return std::nullopt;
}

std::vector<std::string> SplitObjectiveNames() {
  std::vector<std::string> names;
  for (const auto& [objective, name] : kObjectives) names.emplace_back(name);
  return names;
}

absl::Status CheckLaneCosts(const LaneCosts& costs) {
  for (const auto& [field, value] : {std::pair("link_bytes_per_s", costs.link_bytes_per_s),
                                     {"kv_bytes", costs.kv_bytes},
                                     {"x_bytes", costs.x_bytes}}) {
    if (!std::isfinite(value) || value <= 0) return RefuseCost(field, value, "a number above 0, as it was measured");
  }
  for (const auto& [field, value] : {std::pair("other_link_bytes", costs.other_link_bytes),
                                     {"recompute_s", costs.recompute_s},
                                     {"project_s", costs.project_s},
                                     {"attend_s", costs.attend_s},
                                     {"signal_s", costs.signal_s}}) {
    if (!std::isfinite(value) || value < 0) return RefuseCost(field, value, "a number of at least 0");
  }
  if (!(costs.host_attend_s >= 0)) {
    return RefuseCost("host_attend_s", costs.host_attend_s, "a number of at least 0, or infinity for no host lane");
  }
  if (!(costs.host_bytes_per_s > 0)) {
    return RefuseCost("host_bytes_per_s", costs.host_bytes_per_s, "a number above 0, or infinity for no limit");
  }
  return absl::OkStatus();
}

LaneTimes TimesOfLanes(SplitObjective objective, const LaneCosts& costs, const LaneRows& rows) {
  const double speed = LinkSpeed(costs);
  const double x_s = costs.x_bytes * static_cast<double>(rows.x_streamed) / speed;
  const double kv_s = (costs.kv_bytes * static_cast<double>(rows.streamed) + costs.other_link_bytes) / speed;
  const double recompute_s = costs.recompute_s * static_cast<double>(rows.computed);
  LaneTimes times;
  times.link_s = objective == SplitObjective::kRow ? kv_s : x_s + kv_s;
  times.device_s = objective == SplitObjective::kColumn ? x_s + recompute_s : recompute_s;
  if (objective == SplitObjective::kStep) AddStep(costs, rows, &times);
  times.layer_s = std::max({times.link_s, times.device_s, times.host_s, times.shared_s});
  return times;
}

LaneBound BoundOf(const LaneTimes& times) {
  const double each[kLaneBounds] = {times.link_s, times.device_s, times.host_s, times.shared_s};
  return static_cast<LaneBound>(std::max_element(std::begin(each), std::end(each)) - std::begin(each));
}

std::string_view LaneBoundName(LaneBound bound) {
  return kBoundNames[static_cast<size_t>(bound)];
}

}  // namespace runahead
