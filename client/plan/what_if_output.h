// The answers of `runahead plan simulate`, for programs and for people. Pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/plan/what_if.h"
#include "scheduler/partition/cost_fit.h"

namespace runahead {

// One line, one object: ttft_s, parts, fractions, waiting_s, traffic_entries, then more (docs/planning.md). `fit`: null
// where the constants came from a cost file; else `runs` are what it was fitted to.
std::string WhatIfJson(const WhatIfAnswer& answer, const CostFit* fit, absl::Span<const TimedRun> runs);

// A table of workers, then what it means.
std::string WhatIfText(const WhatIfAnswer& answer, const CostModel& model);

// What is wrong with a fit, a line each, the first few.
std::string DoubtsText(const CostFit& fit, absl::string_view indent);

// The constants found, what they make of each run, and whether to trust them.
std::string FitText(const CostFit& fit, absl::Span<const TimedRun> runs);

}  // namespace runahead
