#include "client/plan/what_if.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "scheduler/partition/partition_table.h"
#include "scheduler/partition/simulated_search.h"

namespace runahead {

namespace {

struct Cut {
  std::vector<int64_t> parts;
  std::optional<FoundBy> search;
};

// The tokens behind `known` as the schedule cuts them by itself.
absl::StatusOr<Cut> CutBySchedule(const WhatIfQuestion& question, int width, const KnownBeginning& known) {
  const int64_t tokens = question.tokens - known.tokens;
  Cut cut;
  if (question.schedule == Schedule::kKvr) {
    RUNAHEAD_ASSIGN_OR_RETURN(SearchResult found, SearchSimulated(question.model, tokens, width, question.thorough,
                                                                  /*max_evaluations=*/0, known));
    cut.parts = std::move(found.parts);
    cut.search = FoundBy{question.thorough, found.evaluations, found.end};
  } else {
    RUNAHEAD_ASSIGN_OR_RETURN(cut.parts, EvenParts(tokens, width));
  }
  return cut;
}

}  // namespace

absl::StatusOr<WhatIfAnswer> AnswerWhatIf(const WhatIfQuestion& question) {
  WhatIfAnswer answer;
  answer.schedule = question.schedule;
  answer.known = question.known;
  const CostModel& model = question.model;
  const int width = question.schedule == Schedule::kSingle ? 1 : question.width;
  RUNAHEAD_RETURN_IF_ERROR(CheckCostModel(model, width));
  Cut cut{question.parts, std::nullopt};
  if (cut.parts.empty()) {
    RUNAHEAD_ASSIGN_OR_RETURN(cut, CutBySchedule(question, width, question.known));
  }
  answer.parts = std::move(cut.parts);
  answer.search = cut.search;
  RUNAHEAD_ASSIGN_OR_RETURN(answer.run, SimulateChain(model, question.schedule, answer.parts, question.known));
  const int64_t computed = question.tokens - question.known.tokens;
  RUNAHEAD_ASSIGN_OR_RETURN(const SimulatedRun single,
                            SimulateChain(model, Schedule::kKvr, {computed}, question.known));
  answer.single_ttft_s = single.ttft_s;
  for (const int64_t part : answer.parts) {
    answer.fractions.push_back(static_cast<double>(part) / static_cast<double>(computed));
  }
  if (question.known.tokens > 0) {
    RUNAHEAD_ASSIGN_OR_RETURN(Cut whole, CutBySchedule(question, width, {}));
    RUNAHEAD_ASSIGN_OR_RETURN(const SimulatedRun run, SimulateChain(model, question.schedule, whole.parts));
    answer.whole = WholePrompt{std::move(whole.parts), run.ttft_s};
  }
  return answer;
}

}  // namespace runahead
