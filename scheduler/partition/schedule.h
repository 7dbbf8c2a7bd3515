// How the workers of a chain share a prompt: one word for it from the command line to a worker's stage.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace runahead {

enum class Schedule {
  // KV-Runahead. In every layer a worker computes Q, K and V of its part, sends K and V on, takes one frame for each
  // earlier part, forwards it as soon as it is whole, and attends once all are there. No barrier.
  kKvr,      // parts as given, or from the table
  kKvrEven,  // even parts
  kSingle,   // one worker: a plain forward pass
  // To compare with. In every layer K and V of all parts travel the line in both directions; a worker attends once it
  // has them all. Even parts.
  kTsp,        // over the whole rectangle, part times prompt, as in the paper
  kTspCausal,  // over what causality needs
};

inline constexpr Schedule kSchedules[] = {Schedule::kKvr, Schedule::kKvrEven, Schedule::kSingle, Schedule::kTsp,
                                          Schedule::kTspCausal};

// Whether KV goes to all workers of the chain, and not only down it.
constexpr bool IsTsp(Schedule schedule) {
  return schedule == Schedule::kTsp || schedule == Schedule::kTspCausal;
}

// "kvr", "kvr-even", "single", "tsp" or "tsp-causal": as users type them and answers name them.
std::string_view ScheduleName(Schedule schedule);
std::optional<Schedule> ParseSchedule(std::string_view name);

// All of them, in the order above.
std::vector<std::string> ScheduleNames();

}  // namespace runahead
