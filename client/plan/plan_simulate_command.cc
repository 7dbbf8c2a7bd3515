#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/base/connection.h"
#include "client/base/parse.h"
#include "client/base/typed_flags.h"
#include "client/plan/cost_file.h"
#include "client/plan/cost_keys.h"
#include "client/plan/fit_file.h"
#include "client/plan/plan_command.h"
#include "client/plan/what_if.h"
#include "client/plan/what_if_output.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr char kPlanSimulate[] = "plan simulate";

struct SimulateFlags {
  std::string model_cost;
  std::string fit;
  std::optional<uint64_t> tokens;
  std::optional<uint64_t> width;
  std::optional<double> link_gbps;
  std::optional<uint64_t> known;
  std::optional<double> known_gbps;
  std::string schedule = std::string(ScheduleName(Schedule::kKvr));
  std::string parts;
  std::string search;  // empty: not given
  bool json = false;
};

absl::Status CheckSearch(const SimulateFlags& flags) {
  if (flags.search.empty()) return absl::OkStatus();
  if (flags.search != "paper" && flags.search != "thorough") {
    return WrongFlag("--search: '", flags.search, "' is neither paper nor thorough");
  }
  if (!flags.parts.empty()) return WrongFlag("--search: nothing is searched, --parts gives the parts");
  if (flags.schedule != ScheduleName(Schedule::kKvr)) {
    return WrongFlag("--search: schedule ", flags.schedule, " makes its own parts; they are searched for kvr");
  }
  return absl::OkStatus();
}

absl::Status CheckGbps(const char* flag, std::optional<double> gbps, const char* without) {
  if (!gbps || (*gbps >= kMinLinkGbps && *gbps <= kMaxLinkGbps)) return absl::OkStatus();
  return WrongFlag(flag, ": ", *gbps, " is out of range; allowed: gigabits a second from ", kMinLinkGbps, " to ",
                   kMaxLinkGbps, "; without the flag ", without);
}

absl::Status CheckNames(const SimulateFlags& flags) {
  if (flags.model_cost.empty() == flags.fit.empty()) {
    return WrongFlag("give exactly one of --model-cost FILE and --fit FILE");
  }
  if (!ParseSchedule(flags.schedule)) {
    return WrongFlag("--schedule: '", flags.schedule, "' is none of ", absl::StrJoin(ScheduleNames(), ", "));
  }
  RUNAHEAD_RETURN_IF_ERROR(CheckSearch(flags));
  RUNAHEAD_RETURN_IF_ERROR(CheckGbps("--link-gbps", flags.link_gbps, "links are as the file says"));
  return CheckGbps("--known-gbps", flags.known_gbps, "what is known comes at once");
}

// Sets what is known, which is not among the question's parts. Its tokens and width are set.
absl::Status ReadKnown(const SimulateFlags& flags, WhatIfQuestion* question) {
  const uint64_t known = flags.known.value_or(0);
  if (known == 0) {
    if (flags.known_gbps) return WrongFlag("--known-gbps: nothing is known; --known N says how much is");
    return absl::OkStatus();
  }
  if (IsTsp(question->schedule)) {
    return WrongFlag("--known: schedule ", flags.schedule, " computes a prompt from its first token");
  }
  const int width = question->schedule == Schedule::kSingle ? 1 : question->width;
  const uint64_t most = static_cast<uint64_t>(question->tokens - width);
  if (known > most) {
    return WrongFlag("--known: ", known, " is out of range; allowed: a whole number from 0 to ", most, "; of ",
                     question->tokens, " tokens at least one a worker is computed");
  }
  question->known.tokens = static_cast<int64_t>(known);
  if (flags.known_gbps) question->known.bytes_per_s = BytesPerSecond(*flags.known_gbps);
  return absl::OkStatus();
}

// Sets parts, and tokens and width where they follow from them.
absl::Status ReadParts(const SimulateFlags& flags, WhatIfQuestion* question) {
  if (question->schedule == Schedule::kSingle || question->schedule == Schedule::kKvrEven) {
    return WrongFlag("--parts: schedule ", flags.schedule,
                     " makes its own; parts may be given to kvr, tsp and tsp-causal");
  }
  const auto ids = ParseIds(flags.parts);
  if (!ids.ok()) return InFlag("--parts", ids.status());
  for (const int32_t part : *ids) {
    if (part < 1) return WrongFlag("--parts: ", part, " is not at least 1");
    question->parts.push_back(part);
  }
  const int64_t sum = std::accumulate(question->parts.begin(), question->parts.end(), int64_t{0});
  const uint64_t known = std::min<uint64_t>(flags.known.value_or(0), kMaxPlanTokens);
  if (flags.tokens && static_cast<uint64_t>(sum) + known != *flags.tokens) {
    return WrongFlag("--parts: ", flags.parts, " add up to ", sum, ", not to the ", *flags.tokens, " of --tokens",
                     known > 0 ? absl::StrCat(" less the ", known, " of --known") : "");
  }
  if (flags.width && question->parts.size() != *flags.width) {
    return WrongFlag("--parts: there are ", question->parts.size(), ", but --width is ", *flags.width);
  }
  question->tokens = sum + static_cast<int64_t>(known);
  question->width = static_cast<int>(question->parts.size());
  return absl::OkStatus();
}

absl::StatusOr<WhatIfQuestion> QuestionOf(const SimulateFlags& flags) {
  RUNAHEAD_RETURN_IF_ERROR(CheckNames(flags));
  WhatIfQuestion question;
  question.schedule = *ParseSchedule(flags.schedule);
  question.thorough = flags.search != "paper";
  if (flags.tokens && (*flags.tokens < 1 || *flags.tokens > uint64_t{kMaxPlanTokens})) {
    return WrongFlag("--tokens: ", *flags.tokens, " is out of range; allowed: a whole number from 1 to ",
                     kMaxPlanTokens);
  }
  if (flags.width && (*flags.width < 1 || *flags.width > kMaxSearchWidth)) {
    return WrongFlag("--width: ", *flags.width, " is out of range; allowed: a whole number from 1 to ",
                     kMaxSearchWidth);
  }
  if (!flags.parts.empty()) {
    RUNAHEAD_RETURN_IF_ERROR(ReadParts(flags, &question));
  } else {
    if (!flags.tokens) return WrongFlag("missing: --tokens N: Length of the prompt");
    if (!flags.width && question.schedule != Schedule::kSingle)
      return WrongFlag("missing: --width P: Workers of the chain");
    question.tokens = static_cast<int64_t>(*flags.tokens);
    question.width = static_cast<int>(flags.width.value_or(1));
  }
  if (question.width > kMaxSearchWidth || question.tokens > kMaxPlanTokens) {
    return WrongFlag("--parts: ", question.width, " parts of together ", question.tokens,
                     flags.known ? " tokens with those of --known" : " tokens", "; allowed: up to ", kMaxSearchWidth,
                     " parts and ", kMaxPlanTokens, " tokens");
  }
  if (question.width > question.tokens) {
    return WrongFlag("--width: ", question.width, " is more than one worker a token; the prompt has ", question.tokens);
  }
  RUNAHEAD_RETURN_IF_ERROR(ReadKnown(flags, &question));
  return question;
}

// What the user should know and a program need not read: on stderr, so that stdout stays what was asked for.
void Note(absl::string_view text) {
  std::cerr << "runahead " << kPlanSimulate << ": note: " << absl::StripSuffix(text, "\n") << "\n";
}

int Simulate(const SimulateFlags& flags, WhatIfQuestion question, const CostFit* fit,
             const std::vector<TimedRun>& runs) {
  if (flags.link_gbps) {
    for (LinkCost& link : question.model.links) link.bytes_per_s = BytesPerSecond(*flags.link_gbps);
    if (!question.model.buses.empty()) {
      Note("--link-gbps is of links alone: those that share a bus get no more together than the file says of it");
    }
  }
  if (question.schedule == Schedule::kSingle && question.width > 1) {
    Note(absl::StrCat("schedule single takes one worker, not the ", question.width, " of --width"));
  }
  const auto answer = AnswerWhatIf(question);
  if (!answer.ok()) {
    return Refused(kPlanSimulate,
                   absl::InvalidArgumentError(absl::StrCat(flags.fit.empty() ? flags.model_cost : flags.fit, ": ",
                                                           answer.status().message())));
  }
  std::cout << (flags.json ? WhatIfJson(*answer, fit, runs) : WhatIfText(*answer, question.model));
  return kDone;
}

int RunSimulate(const SimulateFlags& flags) {
  absl::StatusOr<WhatIfQuestion> question = QuestionOf(flags);
  if (!question.ok()) return WrongUsage(kPlanSimulate, question.status());
  if (flags.fit.empty()) {
    auto model = ReadCostFile(flags.model_cost);
    if (!model.ok()) return NotRead(kPlanSimulate, model.status());
    question->model = *std::move(model);
    return Simulate(flags, *std::move(question), nullptr, {});
  }
  const auto file = ReadFitFile(flags.fit);
  if (!file.ok()) return NotRead(kPlanSimulate, file.status());
  const auto fit = FitOf(*file);
  if (!fit.ok()) {
    return NotRead(kPlanSimulate,
                   absl::Status(fit.status().code(), absl::StrCat(flags.fit, ": ", fit.status().message())));
  }
  if (!file->assumed.empty()) Note(absl::StrCat(flags.fit, ": ", file->assumed));
  if (!flags.json) {
    std::cout << FitText(*fit, file->runs);
  } else if (fit->poor()) {
    Note(absl::StrCat(flags.fit, ": the fit is poor:\n", DoubtsText(*fit, "  ")));
  }
  question->model = fit->model;
  return Simulate(flags, *std::move(question), &*fit, file->runs);
}

}  // namespace

void AddPlanSimulateCommand(CLI::App& plan, Command* chosen) {
  CLI::App& simulate = *plan.add_subcommand(
      "simulate",
      "Predicts the time to first token on a chain from what the model costs; nothing runs.\n"
      "Gives the parts, how long each worker computes and waits, and what travels. docs/planning.md has both files.");
  const auto flags = std::make_shared<SimulateFlags>();
  simulate.add_option("--model-cost", flags->model_cost, "YAML with what the model costs")->type_name("FILE");
  simulate
      .add_option("--fit", flags->fit, "Measured times to find the costs from: lines of tokens and seconds, or YAML")
      ->type_name("FILE");
  AddNumber(simulate, "--tokens", &flags->tokens, "Length of the prompt", "N");
  AddNumber(simulate, "--width", &flags->width, absl::StrCat("Workers of the chain, 1 to ", kMaxSearchWidth), "P");
  AddNumber(simulate, "--link-gbps", &flags->link_gbps,
            "Gigabits a second of every link (default: as the file says, else no limit); buses stay as the file says",
            "X");
  AddNumber(simulate, "--known", &flags->known,
            "So many of the first tokens are known: their KV comes to worker 0, and the chain computes the others",
            "N");
  AddNumber(simulate, "--known-gbps", &flags->known_gbps,
            "Gigabits a second at which KV of what is known comes (default: no limit)", "X");
  simulate
      .add_option("--schedule", flags->schedule,
                  absl::StrCat("One of ", absl::StrJoin(ScheduleNames(), ", "), " (default ", flags->schedule, ")"))
      ->type_name("NAME");
  simulate
      .add_option(
          "--parts", flags->parts,
          "Tokens of each worker, as in 700,324, in place of a search; gives tokens (with --known) and width too")
      ->type_name("LIST");
  simulate
      .add_option("--search", flags->search,
                  "How kvr finds its parts. thorough (default): for the best that this model has; takes up to seconds. "
                  "paper: as the paper does. Over fast links it ends little above the best on up to 6 workers, up to "
                  "9% on 8 and 20% on 16; over slow ones it may take twice the time. Not where parts are given or even")
      ->type_name("NAME");
  simulate.add_flag("--json", flags->json,
                    "One JSON object: {\"ttft_s\",\"parts\",\"fractions\",\"waiting_s\":[..],\"traffic_entries\",..}");
  simulate.callback([flags, chosen] { *chosen = [flags] { return RunSimulate(*flags); }; });
}

}  // namespace runahead
