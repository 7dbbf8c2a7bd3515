#include "worker/prompt_rows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"
#include "worker/memory_defaults.h"
#include "worker/model/warm_up.h"

namespace runahead {
namespace {

// What the weights take more where they are loaded for prompts, too.
size_t PackedForPrompts(const WorkerOptions& options, const Device& device, const LoadPlan& plan) {
  if (options.prefill() || !device.host_reads_device_memory()) return 0;
  const auto bytes = [&](unsigned uses) {
    return BytesOnCpu(plan, device.compute_dtype(), device.numerics() == "int8", uses).total();
  };
  return bytes(kUsePrefill | kUseDecode) - bytes(kUseDecode);
}

// Why `auto` computes none; empty: it does.
std::string AutoLeavesOut(const WorkerOptions& options, const Device& device, size_t packed, int64_t usable) {
  if (options.static_window > 0) return "static_window: static windows take one row of a sequence";
  if (options.quantises_kv()) return "kv_bits: KV is quantised, and prefill attends to KV that is not";
  if (device.has_host_link())
    return "step_rows is auto, and KV may stay in host memory, from where steps bring it over";
  if (options.device_memory_budget > 0) return "step_rows is auto, and device_memory_budget bounds what passes take";
  if (static_cast<int64_t>(packed) > usable / kShareForPromptRows) {
    return absl::StrCat("step_rows is auto, and the weights would take ", packed,
                        " bytes more, packed for prompts: more than an eighth of the ", usable,
                        " bytes that this process may use");
  }
  return {};
}

}  // namespace

PromptRows ChoosePromptRows(const WorkerOptions& options, const Device& device, const LoadPlan& plan, int64_t usable) {
  PromptRows rows{.weight_bytes = PackedForPrompts(options, device, plan)};
  const LaneChoice asked = *ParseLaneChoice("step_rows", options.step_rows);
  if (asked.mode == LaneChoice::Mode::kAuto) {
    rows.because = AutoLeavesOut(options, device, rows.weight_bytes, usable);
  } else if (asked.tokens == 0) {
    rows.because = "step_rows is off";
  }
  rows.asked = asked.tokens;
  rows.computed = rows.because.empty();
  if (!rows.computed) rows.weight_bytes = 0;
  return rows;
}

int64_t DefaultStepRows(absl::Duration step, const RowsTime& few, const RowsTime& many, int64_t most) {
  const absl::Duration row = std::max((many.took - few.took) / (many.rows - few.rows), absl::Nanoseconds(1));
  const int64_t rows = few.rows + (step - few.took) / row;
  return std::clamp(rows / kLeastStepRows * kLeastStepRows, kLeastStepRows, std::max(most, kLeastStepRows));
}

absl::StatusOr<int64_t> MeasureStepRows(const Model& model, Device& device, int64_t asked) {
  const int64_t most = std::min(device.gemm_rows(), model.config().context_length);
  if (asked > 0) {
    if (model.streams_weights()) return asked;  // refused later, by name
    RUNAHEAD_RETURN_IF_ERROR(TimePrompt(model, device, std::min(asked, most)).status());
    return asked;
  }
  if (most < 2) return kLeastStepRows;
  RUNAHEAD_ASSIGN_OR_RETURN(const absl::Duration step, TimeStep(model, device, 1));
  RowsTime few{.rows = std::clamp<int64_t>(most / 2, 1, 8), .took = {}},
      many{.rows = std::min<int64_t>(32, most), .took = {}};
  RUNAHEAD_ASSIGN_OR_RETURN(few.took, TimePrompt(model, device, few.rows));
  // Then it is the least, whatever more rows take, for which a large model needs seconds.
  const bool least = few.rows >= kLeastStepRows && few.took >= step;
  if (!least) {
    RUNAHEAD_ASSIGN_OR_RETURN(many.took, TimePrompt(model, device, many.rows));
  }
  const auto text = [](absl::Duration took) { return absl::FormatDuration(absl::Trunc(took, absl::Microseconds(10))); };
  LogInfo("decode", "a step of one sequence takes ", text(step), ", ", few.rows, " rows of a prompt ", text(few.took),
          least ? "" : absl::StrCat(", ", many.rows, " ", text(many.took)));
  return least ? kLeastStepRows : DefaultStepRows(step, few, many, most);
}

}  // namespace runahead
