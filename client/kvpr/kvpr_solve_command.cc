#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/base/connection.h"
#include "client/base/parse.h"
#include "client/base/typed_flags.h"
#include "client/kvpr/kvpr_command.h"
#include "client/kvpr/split_question.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr char kKvprSolve[] = "kvpr solve";
// Far above any machine: what an answer allocates grows with them.
constexpr uint64_t kMostSequences = 65536;
constexpr uint64_t kMostPositions = uint64_t{1} << 24;
constexpr uint64_t kMostWidth = uint64_t{1} << 20;
constexpr uint64_t kMostLayers = 10000;

// As they are typed. Gigabits for links and memories, as in plan simulate.
struct SolveFlags {
  std::optional<uint64_t> hidden, kv_dim, layers, batch, length, kv_bits, x_tokens, l_min;
  std::optional<double> dtype_bytes, kv_bytes, x_bytes, link_gbps, tflops, budget_gib, staging_gib;
  std::optional<double> device_gbps, host_lane_gbps, host_gbps, project_us, signal_us;
  std::string objective = std::string(SplitObjectiveName(SplitObjective::kStep));
  bool json = false;
};

absl::Status TakeCount(const char* flag, uint64_t value, uint64_t most, int64_t* out) {
  if (value < 1 || value > most) {
    return WrongFlag(flag, ": ", value, " is out of range; allowed: a whole number from 1 to ", most);
  }
  *out = static_cast<int64_t>(value);
  return absl::OkStatus();
}

// Above 0, where it is given.
absl::Status TakeAmount(const char* flag, const std::optional<double>& value, double unit, double* out) {
  if (!value) return absl::OkStatus();
  if (!std::isfinite(*value) || *value <= 0) return WrongFlag(flag, ": ", *value, " is not above 0");
  *out = *value * unit;
  return absl::OkStatus();
}

absl::Status TakeGib(const char* flag, const std::optional<double>& value, int64_t* out) {
  if (!value) return absl::OkStatus();
  if (!(*value >= 0 && *value <= 1 << 20)) return WrongFlag(flag, ": ", *value, " is not between 0 and 1048576");
  *out = static_cast<int64_t>(*value * (1 << 30));
  return absl::OkStatus();
}

absl::Status TakeKv(const SolveFlags& flags, SplitQuestion* question) {
  if (flags.kv_bytes && flags.kv_bits) return WrongFlag("give one of --kv-bytes and --kv-bits, not both");
  const double elements = 2 * static_cast<double>(question->kv_dim);
  question->kv_bytes = elements * question->dtype_bytes;
  if (!flags.kv_bits) return TakeAmount("--kv-bytes", flags.kv_bytes, elements, &question->kv_bytes);
  const auto bits = static_cast<int64_t>(std::min<uint64_t>(*flags.kv_bits, 1000));
  const auto bytes = StoredKvBytes(question->kv_dim, bits, question->dtype_bytes);
  if (!bytes.ok()) return InFlag("--kv-bits", bytes.status());
  question->kv_bytes = *bytes;
  return absl::OkStatus();
}

absl::Status TakePositions(const SolveFlags& flags, SplitQuestion* question) {
  if (flags.x_tokens) {
    if (*flags.x_tokens > static_cast<uint64_t>(question->length)) {
      return WrongFlag("--x-tokens: ", *flags.x_tokens, " is more than --length, ", question->length);
    }
    question->x_tokens = static_cast<int64_t>(*flags.x_tokens);
  }
  const int64_t stored = question->x_tokens.value_or(question->length);
  if (flags.l_min.value_or(0) > static_cast<uint64_t>(stored)) {
    return WrongFlag("--l-min: ", *flags.l_min, " is beyond the ", stored,
                     " positions that X is stored for; what works is 0 to ", stored);
  }
  question->l_min = static_cast<int64_t>(flags.l_min.value_or(0));
  return absl::OkStatus();
}

absl::StatusOr<SplitQuestion> SolveQuestionOf(const SolveFlags& flags) {
  constexpr double kGigabit = 1e9 / 8;
  SplitQuestion question;
  const auto objective = ParseSplitObjective(flags.objective);
  if (!objective) {
    return WrongFlag("--objective: '", flags.objective, "' is none of ", absl::StrJoin(SplitObjectiveNames(), ", "));
  }
  question.objective = *objective;
  RUNAHEAD_RETURN_IF_ERROR(TakeCount("--hidden", *flags.hidden, kMostWidth, &question.hidden));
  RUNAHEAD_RETURN_IF_ERROR(TakeCount("--kv-dim", *flags.kv_dim, kMostWidth, &question.kv_dim));
  RUNAHEAD_RETURN_IF_ERROR(TakeCount("--layers", *flags.layers, kMostLayers, &question.layers));
  RUNAHEAD_RETURN_IF_ERROR(TakeCount("--batch", *flags.batch, kMostSequences, &question.batch));
  RUNAHEAD_RETURN_IF_ERROR(TakeCount("--length", *flags.length, kMostPositions, &question.length));
  RUNAHEAD_RETURN_IF_ERROR(TakeAmount("--dtype-bytes", flags.dtype_bytes, 1, &question.dtype_bytes));
  RUNAHEAD_RETURN_IF_ERROR(TakeAmount("--link-gbps", flags.link_gbps, kGigabit, &question.link_bytes_per_s));
  RUNAHEAD_RETURN_IF_ERROR(TakeAmount("--tflops", flags.tflops, 1e12, &question.flops));
  RUNAHEAD_RETURN_IF_ERROR(TakeAmount("--device-gbps", flags.device_gbps, kGigabit, &question.device_bytes_per_s));
  RUNAHEAD_RETURN_IF_ERROR(
      TakeAmount("--host-lane-gbps", flags.host_lane_gbps, kGigabit, &question.host_lane_bytes_per_s));
  RUNAHEAD_RETURN_IF_ERROR(TakeAmount("--host-gbps", flags.host_gbps, kGigabit, &question.host_bytes_per_s));
  RUNAHEAD_RETURN_IF_ERROR(TakeAmount("--project-us", flags.project_us, 1e-6, &question.project_s));
  RUNAHEAD_RETURN_IF_ERROR(TakeAmount("--signal-us", flags.signal_us, 1e-6, &question.signal_s));
  RUNAHEAD_RETURN_IF_ERROR(TakeGib("--budget-gib", flags.budget_gib, &question.budget_bytes));
  RUNAHEAD_RETURN_IF_ERROR(TakeGib("--staging-gib", flags.staging_gib, &question.staging_bytes));
  RUNAHEAD_RETURN_IF_ERROR(TakeKv(flags, &question));
  const auto hidden = static_cast<double>(question.hidden);
  question.x_bytes = hidden * question.dtype_bytes;
  RUNAHEAD_RETURN_IF_ERROR(TakeAmount("--x-bytes", flags.x_bytes, hidden, &question.x_bytes));
  RUNAHEAD_RETURN_IF_ERROR(TakePositions(flags, &question));
  return question;
}

int RunSolve(const SolveFlags& flags) {
  const auto question = SolveQuestionOf(flags);
  if (!question.ok()) return WrongUsage(kKvprSolve, question.status());
  const auto answer = AnswerSplit(*question);
  if (!answer.ok()) return WrongUsage(kKvprSolve, answer.status());
  std::cout << (flags.json ? SplitJson(*question, *answer) : SplitText(*question, *answer));
  return kDone;
}

void AddModelFlags(CLI::App& solve, SolveFlags* flags) {
  AddNumber(solve, "--hidden", &flags->hidden, "Elements of a row of X", "H");
  AddNumber(solve, "--kv-dim", &flags->kv_dim, "Elements of a row of K: KV heads times head size", "D");
  AddNumber(solve, "--layers", &flags->layers, "Layers of the model", "L");
  AddNumber(solve, "--batch", &flags->batch, "Sequences of a step", "B");
  AddNumber(solve, "--length", &flags->length, "Positions of each sequence", "S");
  AddNumber(solve, "--dtype-bytes", &flags->dtype_bytes, "Bytes of an element of X, and of KV on the device", "P");
  AddNumber(
      solve, "--x-bytes", &flags->x_bytes,
      "Bytes of an element of X as the host stores it: 1.125 where workers keep it in q8, 2.125 in q16 (default: as "
      "--dtype-bytes)",
      "R");
  AddNumber(solve, "--kv-bytes", &flags->kv_bytes,
            "Bytes of an element of KV as the host stores it (default: as --dtype-bytes)", "Q");
  AddNumber(solve, "--kv-bits", &flags->kv_bits,
            "The same as a worker's kv_bits: 4, 8 (with a scale and a zero for each group of 64 or 32 elements) or 16 "
            "(as --dtype-bytes)",
            "N");
  AddNumber(solve, "--x-tokens", &flags->x_tokens, "For how many positions X is stored (default: all)", "N");
  AddNumber(solve, "--l-min", &flags->l_min, "The smallest l: before it only X is stored (default 0)", "N");
}

void AddMachineFlags(CLI::App& solve, SolveFlags* flags) {
  AddNumber(solve, "--link-gbps", &flags->link_gbps, "Gigabits a second from host to device", "X");
  AddNumber(solve, "--tflops", &flags->tflops, "10^12 operations a second of the device in recomputation", "Y");
  AddNumber(solve, "--budget-gib", &flags->budget_gib, "Device memory for KV and X (default: none stays there)", "G");
  AddNumber(solve, "--staging-gib", &flags->staging_gib, "Of the budget, what streaming takes (default 0)", "G");
  AddNumber(solve, "--device-gbps", &flags->device_gbps,
            "step: gigabits a second of KV that the device attends over (default: attention is free)", "X");
  AddNumber(solve, "--host-lane-gbps", &flags->host_lane_gbps,
            "step: gigabits a second of KV that the host attends over (default: there is no host lane)", "X");
  AddNumber(solve, "--host-gbps", &flags->host_gbps,
            "Gigabits a second of host memory, shared by copies and host lane (default: no limit)", "X");
  AddNumber(solve, "--project-us", &flags->project_us,
            "step: microseconds of a layer's projections and MLP (default 0)", "T");
  AddNumber(solve, "--signal-us", &flags->signal_us,
            "step: microseconds of the host lane's small transfers in a layer (default 0)", "T");
}

}  // namespace

void AddKvprSolveCommand(CLI::App& kvpr, Command* chosen) {
  CLI::App& solve = *kvpr.add_subcommand(
      "solve",
      "Says how a decode step over KV in host memory would be split, and what that gains; nothing runs.\n"
      "docs/kvpr.md has the objectives and an example.");
  const auto flags = std::make_shared<SolveFlags>();
  AddModelFlags(solve, flags.get());
  AddMachineFlags(solve, flags.get());
  for (const char* needed :
       {"--hidden", "--kv-dim", "--layers", "--batch", "--length", "--dtype-bytes", "--link-gbps", "--tflops"}) {
    solve.get_option(needed)->required();
  }
  solve
      .add_option("--objective", flags->objective,
                  absl::StrCat("One of ", absl::StrJoin(SplitObjectiveNames(), ", "), " (default ", flags->objective,
                               ", what decode does)"))
      ->type_name("NAME");
  solve.add_flag("--json", flags->json,
                 "One JSON object: {\"l\",\"gain\",\"times\":{..},\"tiers\":{..},\"lanes\":{..},..}");
  solve.callback([flags, chosen] { *chosen = [flags] { return RunSolve(*flags); }; });
}

}  // namespace runahead
