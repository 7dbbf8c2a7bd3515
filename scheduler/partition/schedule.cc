#include "scheduler/partition/schedule.h"

namespace runahead {

std::string_view ScheduleName(Schedule schedule) {
  switch (schedule) {
    case Schedule::kKvr:
      return "kvr";
    case Schedule::kKvrEven:
      return "kvr-even";
    case Schedule::kSingle:
      return "single";
    case Schedule::kTsp:
      return "tsp";
    case Schedule::kTspCausal:
      return "tsp-causal";
  }
  return "";
}

std::optional<Schedule> ParseSchedule(std::string_view name) {
  for (const Schedule schedule : kSchedules) {
    if (name == ScheduleName(schedule)) return schedule;
  }
  return std::nullopt;
}

std::vector<std::string> ScheduleNames() {
  std::vector<std::string> names;
  for (const Schedule schedule : kSchedules) names.emplace_back(ScheduleName(schedule));
  return names;
}

}  // namespace runahead
