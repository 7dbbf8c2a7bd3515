#include "client/bench/bench_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/base/api_key.h"
#include "client/base/parse.h"
#include "client/base/typed_flags.h"
#include "client/bench/prompt_file.h"
#include "kernels/base/status_macros.h"
#include "server/base/random.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

constexpr int32_t kUsualPrompts = 100;
constexpr int32_t kMostPrompts = 1'000'000;
constexpr int32_t kUsualConcurrency = 1024;
constexpr int32_t kMostWarmup = 10'000;
constexpr double kMostRate = 1e6;
constexpr double kUsualTimeoutS = 600;
constexpr int64_t kMostFileBytes = int64_t{1} << 30;

absl::StatusOr<int32_t> Within(const char* flag, const std::optional<int32_t>& value, int32_t usual, int32_t least,
                               int32_t most) {
  if (!value) return usual;
  if (*value >= least && *value <= most) return *value;
  return WrongFlag(flag, ": ", *value, " is out of range; allowed: ", least, " to ", most);
}

absl::StatusOr<absl::Duration> SecondsOf(const char* flag, const std::optional<double>& value, double usual) {
  if (!value) return absl::Seconds(usual);
  if (*value > 0) return absl::Seconds(*value);
  return WrongFlag(flag, ": ", *value, " is not above 0 seconds");
}

absl::Status ReadRange(const char* flag, const std::string& text, LengthRange& range) {
  const auto read = ParseLengthRange(text);
  if (!read.ok()) return InFlag(flag, read.status());
  range = *read;
  return absl::OkStatus();
}

std::string RangeText(const LengthRange& range) {
  return range.least == range.most ? absl::StrCat(range.least) : absl::StrCat(range.least, " to ", range.most);
}

void AddBenchWorkload(CLI::App& app, std::string* input, std::string* output, std::string* file) {
  app.add_option("--input-tokens", *input, "Tokens of a prompt: a number, or a range such as 200-800 (default: 256)")
      ->type_name("RANGE");
  app.add_option("--output-tokens", *output, "Tokens of an answer, likewise (default: 128)")->type_name("RANGE");
  app.add_option("--file", *file,
                 "Prompts of a file in place of made ones: JSON lines with \"prompt\" or \"messages\", and "
                 "\"max_tokens\" where it is not --output-tokens")
      ->type_name("FILE");
}

}  // namespace

void BenchFlags::AddTo(CLI::App& app) {
  router_.AddTo(app, /*required=*/false);
  app.add_option("--url", url_,
                 "In place of --router: a server of the OpenAI API, such as http://127.0.0.1:8000/v1, whose streams "
                 "are timed; --api-key goes there as well")
      ->type_name("URL");
  app.add_option("--model", model_, "The model's name (default: the one that is served, or listed first)")
      ->type_name("NAME");
  app.option_defaults()->group("Prompts");
  AddNumber(app, "--prompts", &prompts_, "Requests to send (default: 100, or all lines of --file)", "N");
  AddBenchWorkload(app, &input_tokens_, &output_tokens_, &file_);
  AddNumber(app, "--shared-prefix", &shared_prefix_,
            "Tokens that all made prompts begin with, in front of --input-tokens (default: 0)", "N");
  app.add_flag("--chat", chat_, "Send prompts as chats of one message");
  app.add_flag("--ids", ids_, "With --url: made prompts are lists of token ids from 1000 to 19999, in place of words");
  CLI::Option* const ignore_eos = app.add_flag(
      "--ignore-eos", ignore_eos_, "Answers go on to their full length (default: they do, but for those of --file)");
  app.add_flag("--no-ignore-eos", no_ignore_eos_, "Answers end where the model ends them")->excludes(ignore_eos);
  AddNumber(app, "--seed", &seed_,
            "What made prompts and arrivals follow from; the same one makes the same load (default: drawn)", "N");
  app.option_defaults()->group("Load");
  AddNumber(app, "--rate", &rate_, "Requests a second, as a Poisson process (default: inf, as fast as they may)", "R");
  AddNumber(app, "--concurrency", &concurrency_, "Most requests that are under way at once (default: 1024)", "N");
  AddNumber(app, "--duration", &duration_s_, "Send nothing more after so many seconds (default: no limit)", "S");
  AddNumber(app, "--warmup", &warmup_, "Requests before the load, which do not count (default: 1)", "N");
  AddNumber(app, "--timeout", &timeout_s_, "A request has failed after so many seconds (default: 600)", "S");
  app.option_defaults()->group("Report");
  app.add_option("--goodput", objectives_,
                 "Also count requests that kept all of these milliseconds, as in ttft:500,tpot:50,e2e:10000")
      ->type_name("LIST");
  const auto read_json = [this](const CLI::results_t& results) {
    json_ = results.empty() ? "" : results[0];
    return true;
  };
  app.add_option("--json", read_json,
                 "Save settings, figures and each request's times to FILE as one JSON object; without FILE, print it "
                 "on stdout in place of the table")
      ->expected(0, 1)
      ->type_name("FILE");
  app.add_flag("--force", force_, "Writes over FILE");
  app.add_flag("--fail-on-error", fail_on_error_, "Exit code 1 where any request failed, not only where all did");
  app.option_defaults()->group("Options");
}

absl::StatusOr<BenchPlan> BenchFlags::Read() const {
  BenchPlan plan;
  RUNAHEAD_RETURN_IF_ERROR(ReadDoor(plan));
  RUNAHEAD_RETURN_IF_ERROR(ReadWorkload(plan));
  if (!file_.empty()) RUNAHEAD_RETURN_IF_ERROR(ReadFile(plan));
  RUNAHEAD_RETURN_IF_ERROR(ReadLoad(plan));
  if (!objectives_.empty()) {
    const auto objectives = ParseObjectives(objectives_);
    RUNAHEAD_RETURN_IF_ERROR(InFlag("--goodput", objectives.status()));
    plan.objectives = *objectives;
  }
  return plan;
}

absl::Status BenchFlags::ReadDoor(BenchPlan& plan) const {
  if (url_.empty() == router_.address.empty()) {
    return WrongFlag("give exactly one of --router ADDR and --url URL");
  }
  RUNAHEAD_RETURN_IF_ERROR(InFlag("--model", CheckUtf8(model_)));
  if (url_.empty()) return ids_ ? WrongFlag("--ids: goes with --url; a router gets ids anyway") : absl::OkStatus();
  if (router_.tls.given()) return WrongFlag("--tls: goes with --router; --url speaks plain HTTP");
  if (ids_ && chat_) return WrongFlag("--ids: a chat has no ids; give --ids or --chat");
  RUNAHEAD_RETURN_IF_ERROR(CheckApiKey(router_.api_key));
  const auto url = ParseServerUrl(url_);
  RUNAHEAD_RETURN_IF_ERROR(InFlag("--url", url.status()));
  plan.url = *url;
  plan.ids = ids_;
  return absl::OkStatus();
}

absl::Status BenchFlags::ReadWorkload(BenchPlan& plan) const {
  RUNAHEAD_RETURN_IF_ERROR(ReadRange("--input-tokens", input_tokens_, plan.workload.input));
  RUNAHEAD_RETURN_IF_ERROR(ReadRange("--output-tokens", output_tokens_, plan.workload.output));
  RUNAHEAD_ASSIGN_OR_RETURN(plan.workload.shared_prefix,
                            Within("--shared-prefix", shared_prefix_, 0, 0, kMostBenchTokens));
  RUNAHEAD_ASSIGN_OR_RETURN(plan.load.requests, Within("--prompts", prompts_, kUsualPrompts, 1, kMostPrompts));
  plan.workload.ignore_eos = !no_ignore_eos_;
  plan.workload.seed = seed_ ? *seed_ : RandomBits64() >> 32;  // short enough to be typed again
  plan.chat = chat_;
  return absl::OkStatus();
}

absl::Status BenchFlags::ReadFile(BenchPlan& plan) const {
  const auto text = ReadTextFile(file_, kMostFileBytes);
  RUNAHEAD_RETURN_IF_ERROR(InFlag("--file", text.status()));
  auto requests = ReadPromptLines(*text, plan.workload.output.most, ignore_eos_);
  RUNAHEAD_RETURN_IF_ERROR(InFlag(absl::StrCat("--file ", file_), requests.status()));
  plan.from_file = *std::move(requests);
  const int64_t lines = static_cast<int64_t>(plan.from_file.size());
  if (!prompts_) plan.load.requests = lines;
  if (plan.load.requests > lines) {
    return WrongFlag("--prompts: ", plan.load.requests, " are more than the ", lines, " of --file");
  }
  if (chat_) std::for_each(plan.from_file.begin(), plan.from_file.end(), MakeChat);
  return absl::OkStatus();
}

absl::Status BenchFlags::ReadLoad(BenchPlan& plan) const {
  plan.rate = rate_.value_or(std::numeric_limits<double>::infinity());
  if (!(plan.rate > 0) || (std::isfinite(plan.rate) && plan.rate > kMostRate)) {
    return WrongFlag("--rate: ", plan.rate, " is out of range; allowed: above 0 to ", kMostRate, ", or inf");
  }
  plan.load.planned = std::isfinite(plan.rate);
  const auto usual = static_cast<int32_t>(std::min<int64_t>(plan.load.requests, kUsualConcurrency));
  RUNAHEAD_ASSIGN_OR_RETURN(plan.load.concurrency, Within("--concurrency", concurrency_, usual, 1, kMostConcurrency));
  RUNAHEAD_ASSIGN_OR_RETURN(plan.warmup, Within("--warmup", warmup_, 1, 0, kMostWarmup));
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  RUNAHEAD_ASSIGN_OR_RETURN(plan.load.duration, SecondsOf("--duration", duration_s_, kNoLimit));
  RUNAHEAD_ASSIGN_OR_RETURN(plan.timeout, SecondsOf("--timeout", timeout_s_, kUsualTimeoutS));
  return absl::OkStatus();
}

std::string BenchFlags::PromptsText(const BenchPlan& plan) const {
  if (!plan.from_file.empty()) return absl::StrCat("of ", file_);
  const std::string prefix =
      plan.workload.shared_prefix > 0 ? absl::StrCat(plan.workload.shared_prefix, " shared and ") : "";
  return absl::StrCat("of ", prefix, RangeText(plan.workload.input), " made tokens, answers of ",
                      RangeText(plan.workload.output));
}

}  // namespace runahead
