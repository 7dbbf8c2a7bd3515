// The schedules that are compared, live and by `runahead plan`, by the names a user types.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "scheduler/partition/chain_simulator.h"

namespace runahead {

inline constexpr char kScheduleKvr[] = "kvr";           // parts as given or searched
inline constexpr char kScheduleKvrEven[] = "kvr-even";  // the same with even parts
inline constexpr char kScheduleSingle[] = "single";     // one worker, whatever the chain's width
inline constexpr char kScheduleTsp[] = "tsp";           // even parts, all-gather, dense rectangle
inline constexpr char kScheduleTspCausal[] = "tsp-causal";

inline const std::vector<std::string>& PlanSchedules() {
  static const std::vector<std::string> names = {kScheduleKvr, kScheduleKvrEven, kScheduleSingle, kScheduleTsp,
                                                 kScheduleTspCausal};
  return names;
}

// What the simulator runs for one of PlanSchedules(): those that differ in their parts only are one to it.
inline SimulatedSchedule SimulatedAs(absl::string_view schedule) {
  return ParseSimulatedSchedule({schedule.data(), schedule.size()}).value_or(SimulatedSchedule::kKvr);
}

}  // namespace runahead
