#include "client/plan/what_if.h"

#include <algorithm>
#include <numeric>

#include "client/base/plan_schedules.h"
#include "kernels/base/status_macros.h"
#include "scheduler/partition/partition_table.h"

namespace runahead {
namespace {

// Steps of the simulator, a few nanoseconds each, that a search may take: some five seconds. Only models of hundreds of
// layers on wide chains come near it.
constexpr int64_t kMaxSteps = 1'000'000'000;

int64_t MaxEvaluations(const CostModel& model, int width) {
  const int64_t steps = std::max<int64_t>(1, model.layers * width * width / 2);
  return std::clamp<int64_t>(kMaxSteps / steps, 1000, SearchOptions().max_evaluations);
}

// In proportion to the workers' speeds: even for equal ones.
std::vector<int64_t> PartsBySpeed(const CostModel& model, int64_t tokens, int width) {
  std::vector<double> speeds(width);
  for (int i = 0; i < width; ++i) speeds[i] = 1 / model.worker_factors[i];
  const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  for (double& speed : speeds) speed /= sum;
  return RoundParts(tokens, speeds);
}

absl::StatusOr<SearchResult> SearchParts(const WhatIfQuestion& question) {
  const CostModel& model = question.model;
  SearchOptions options;
  options.max_evaluations = MaxEvaluations(model, question.width);
  options.thorough = question.thorough;
  if (!question.thorough) options.first_stride = std::max<int64_t>(1, question.tokens / question.width / 4);
  if (!model.worker_factors.empty()) options.seeds = {PartsBySpeed(model, question.tokens, question.width)};
  const auto seconds = [&model](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
    RUNAHEAD_ASSIGN_OR_RETURN(const SimulatedRun run, SimulateChain(model, SimulatedSchedule::kKvr, parts));
    return run.ttft_s;
  };
  return SearchPartition(question.tokens, question.width, ObjectiveOf(seconds), options);
}

}  // namespace

absl::StatusOr<WhatIfAnswer> AnswerWhatIf(const WhatIfQuestion& question) {
  WhatIfAnswer answer;
  answer.schedule = question.schedule;
  const int width = question.schedule == kScheduleSingle ? 1 : question.width;
  RUNAHEAD_RETURN_IF_ERROR(CheckCostModel(question.model, width));
  if (!question.parts.empty()) {
    answer.parts = question.parts;
  } else if (question.schedule == kScheduleKvr) {
    RUNAHEAD_ASSIGN_OR_RETURN(const SearchResult found, SearchParts(question));
    answer.parts = found.parts;
    answer.search = FoundBy{question.thorough, found.evaluations, found.end};
  } else {
    RUNAHEAD_ASSIGN_OR_RETURN(answer.parts, EvenParts(question.tokens, width));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(answer.run, SimulateChain(question.model, SimulatedAs(question.schedule), answer.parts));
  RUNAHEAD_ASSIGN_OR_RETURN(const SimulatedRun single,
                            SimulateChain(question.model, SimulatedSchedule::kKvr, {question.tokens}));
  answer.single_ttft_s = single.ttft_s;
  for (const int64_t part : answer.parts) {
    answer.fractions.push_back(static_cast<double>(part) / static_cast<double>(question.tokens));
  }
  return answer;
}

}  // namespace runahead
