// Whether a decode worker computes rows of prompts, and how many a step takes (option step_rows).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/device.h"
#include "worker/model/load_plan.h"
#include "worker/model/model.h"
#include "worker/options.h"

namespace runahead {

struct PromptRows {
  bool computed = false;
  int64_t asked = 0;         // rows of a step; 0: to be measured
  std::string because = {};  // for people: why they are not
  size_t weight_bytes = 0;   // of the weights, what is packed for them alone
};

// `plan` is the model's, `usable` the bytes of memory that the process may use (UsableMemory). With step_rows: auto they
// are computed on a CPU without a link where that takes little more memory: the weights have one form for prompts and
// output, or the worker computes prompts anyway, or what is packed for them is at most an eighth of `usable`
// (kShareForPromptRows).
PromptRows ChoosePromptRows(const WorkerOptions& options, const Device& device, const LoadPlan& plan, int64_t usable);

// What a pass over so many rows of a prompt takes.
struct RowsTime {
  int64_t rows = 0;
  absl::Duration took;
};
// As many rows as take as long as a step of one sequence, `step`, by two measured passes, `few` of fewer rows: a step
// that has them takes twice as long. kLeastStepRows at least, also where these take longer: with fewer, prompts would
// hardly get on. `most` at most.
inline constexpr int64_t kLeastStepRows = 8;
int64_t DefaultStepRows(absl::Duration step, const RowsTime& few, const RowsTime& many, int64_t most);

// The rows of a step: `asked`, or DefaultStepRows measured on the device, where that is 0. Afterwards the device has
// run a pass over a prompt, so it loads no kernel for it later. Blocks; the model is loaded for both uses.
absl::StatusOr<int64_t> MeasureStepRows(const Model& model, Device& device, int64_t asked);

}  // namespace runahead
