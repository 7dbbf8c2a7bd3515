#include "client/plan/what_if.h"

#include "kernels/base/status_macros.h"
#include "scheduler/partition/partition_table.h"
#include "scheduler/partition/simulated_search.h"

namespace runahead {

absl::StatusOr<WhatIfAnswer> AnswerWhatIf(const WhatIfQuestion& question) {
  WhatIfAnswer answer;
  answer.schedule = question.schedule;
  const int width = question.schedule == Schedule::kSingle ? 1 : question.width;
  RUNAHEAD_RETURN_IF_ERROR(CheckCostModel(question.model, width));
  if (!question.parts.empty()) {
    answer.parts = question.parts;
  } else if (question.schedule == Schedule::kKvr) {
    RUNAHEAD_ASSIGN_OR_RETURN(const SearchResult found,
                              SearchSimulated(question.model, question.tokens, question.width, question.thorough));
    answer.parts = found.parts;
    answer.search = FoundBy{question.thorough, found.evaluations, found.end};
  } else {
    RUNAHEAD_ASSIGN_OR_RETURN(answer.parts, EvenParts(question.tokens, width));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(answer.run, SimulateChain(question.model, question.schedule, answer.parts));
  RUNAHEAD_ASSIGN_OR_RETURN(const SimulatedRun single,
                            SimulateChain(question.model, Schedule::kKvr, {question.tokens}));
  answer.single_ttft_s = single.ttft_s;
  for (const int64_t part : answer.parts) {
    answer.fractions.push_back(static_cast<double>(part) / static_cast<double>(question.tokens));
  }
  return answer;
}

}  // namespace runahead
