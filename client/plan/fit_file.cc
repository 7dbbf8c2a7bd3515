#include "client/plan/fit_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/plan/cost_keys.h"
#include "kernels/base/status_macros.h"
#include "scheduler/partition/partition_search.h"
#include "scheduler/partition/partition_table.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

// Llama-7B in 16 bits, the paper's model: what a fit file that names no model is taken for.
constexpr int64_t kUsualLayers = 32;
constexpr double kUsualKvBytes = 2 * 32 * 4096 * 2;

constexpr size_t kMaxRuns = 256;  // a fit simulates each some hundred times

struct RunKeys {
  int64_t tokens = 0;
  double seconds = 0;
  std::string schedule;
  int64_t width = 0;
  std::vector<int64_t> parts;
  double link_gbps = 0;
};

void DeclareRunKeys(ConfigSchema& schema, RunKeys& run) {
  schema.Int("tokens", &run.tokens, {.min = 1, .max = kMaxPlanTokens, .required = true}, "Length of the prompt");
  schema.Double("seconds", &run.seconds, {.min = 1e-9, .max = kMaxCostSeconds, .required = true}, "Measured TTFT");
  schema.String("schedule", &run.schedule, {.one_of = ScheduleNames()}, "How it ran");
  schema.Int("width", &run.width, {.min = 1, .max = kMaxSearchWidth}, "Workers");
  schema.Ints("parts", &run.parts, {.min = 1, .max = kMaxPlanTokens}, {.min_items = 1, .max_items = kMaxSearchWidth},
              "Tokens of each worker");
  schema.Double("link_gbps", &run.link_gbps, {.min = kMinLinkGbps, .max = kMaxLinkGbps}, "Links of this run");
}

ConfigValue Scalar(std::string where, std::string key, absl::string_view text) {
  ConfigValue value;
  value.kind = ConfigValue::Kind::kScalar;
  value.where = std::move(where);
  value.key = std::move(key);
  value.scalar = std::string(text);
  return value;
}

// A run from a pair: {tokens: ., seconds: .}.
ConfigValue RunOf(const std::string& where, absl::string_view tokens, absl::string_view seconds) {
  ConfigValue run;
  run.kind = ConfigValue::Kind::kMap;
  run.where = where;
  run.items = {Scalar(where, "tokens", tokens), Scalar(where, "seconds", seconds)};
  return run;
}

ConfigValue FileOfRuns(const std::string& where, std::vector<ConfigValue> runs) {
  ConfigValue list;
  list.kind = ConfigValue::Kind::kList;
  list.where = where;
  list.key = "runs";
  list.items = std::move(runs);
  ConfigValue file;
  file.kind = ConfigValue::Kind::kMap;
  file.where = where;
  file.items = {std::move(list)};
  return file;
}

std::vector<absl::string_view> Words(absl::string_view line) {
  line = line.substr(0, line.find('#'));
  return absl::StrSplit(line, absl::ByAnyChar(" \t,;\r"), absl::SkipEmpty());
}

// Plain lines begin with two words that are nothing of YAML.
bool IsPlainLines(absl::string_view text) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = Words(line);
    if (words.empty()) continue;
    return words.size() == 2 && words[0] != "-" && line.find_first_of(":[]{}") == absl::string_view::npos;
  }
  return false;
}

// Lines of tokens and seconds, the first of which may be "tokens seconds".
absl::StatusOr<ConfigValue> ParsePlainLines(absl::string_view text, const std::string& name) {
  std::vector<ConfigValue> runs;
  int number = 0;
  bool first = true;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::string where = absl::StrCat(name, ":", ++number);
    const std::vector<absl::string_view> words = Words(line);
    if (words.empty()) continue;
    const bool heading = std::exchange(first, false) && absl::StrJoin(words, " ") == "tokens seconds";
    if (heading) continue;
    if (words.size() != 2) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": holds ", words.size(),
                                                     words.size() == 1 ? " word" : " words",
                                                     "; allowed: tokens and seconds, as in 4096 0.65"));
    }
    runs.push_back(RunOf(where, words[0], words[1]));
  }
  return FileOfRuns(name, std::move(runs));
}

// A file that is a list is one of runs, and a run may be written as [tokens, seconds].
ConfigValue WithPairsAsMaps(ConfigValue file) {
  if (file.kind == ConfigValue::Kind::kList) file = FileOfRuns(file.where, std::move(file.items));
  for (ConfigValue& value : file.items) {
    if (value.key != "runs") continue;
    for (ConfigValue& run : value.items) {
      const bool pair = run.kind == ConfigValue::Kind::kList && run.items.size() == 2 &&
                        run.items[0].kind == ConfigValue::Kind::kScalar &&
                        run.items[1].kind == ConfigValue::Kind::kScalar;
      if (pair) run = RunOf(run.where, run.items[0].scalar, run.items[1].scalar);
    }
  }
  return file;
}

absl::StatusOr<TimedRun> TimedRunOf(const RunKeys& keys) {
  const auto refuse = [](auto... texts) { return absl::InvalidArgumentError(absl::StrCat(texts...)); };
  TimedRun run;
  run.seconds = keys.seconds;
  if (keys.link_gbps > 0) run.link_bytes_per_s = BytesPerSecond(keys.link_gbps);
  const int64_t width = std::max<int64_t>({1, keys.width, static_cast<int64_t>(keys.parts.size())});
  const Schedule schedule = ParseSchedule(keys.schedule).value_or(width == 1 ? Schedule::kSingle : Schedule::kKvr);
  run.schedule = IsTsp(schedule) ? schedule : Schedule::kKvr;  // its parts say the rest
  if (schedule == Schedule::kSingle && width > 1) {
    return refuse("width: ", width, ", but schedule single takes one worker");
  }
  if (!keys.parts.empty()) {
    const int64_t sum = std::accumulate(keys.parts.begin(), keys.parts.end(), int64_t{0});
    if (sum != keys.tokens) return refuse("parts: they add up to ", sum, ", not to the ", keys.tokens, " tokens");
    if (keys.width > 0 && keys.width != static_cast<int64_t>(keys.parts.size())) {
      return refuse("width: ", keys.width, ", but there are ", keys.parts.size(), " parts");
    }
    run.parts = keys.parts;
    return run;
  }
  if (schedule == Schedule::kKvr && width > 1) {
    return refuse("parts: missing; a run of kvr on ", width,
                  " workers says its parts, one of kvr-even or tsp need not");
  }
  if (width > keys.tokens) return refuse("width: ", width, " is more than one worker a token");
  RUNAHEAD_ASSIGN_OR_RETURN(run.parts, EvenParts(keys.tokens, static_cast<int>(width)));
  return run;
}

std::string WhatIsAssumed(bool layers, bool kv_bytes) {
  std::vector<std::string> assumed;
  if (layers) assumed.push_back(absl::StrCat("layers: ", kUsualLayers));
  if (kv_bytes) assumed.push_back(absl::StrCat("kv_bytes_per_token: ", static_cast<int64_t>(kUsualKvBytes)));
  if (assumed.empty()) return "";
  return absl::StrCat(absl::StrJoin(assumed, " and "), assumed.size() == 1 ? " is" : " are",
                      " taken from Llama-7B in 16 bits, as the file does not say");
}

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<FitFile> ReadFitFile(const std::string& path) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  RUNAHEAD_ASSIGN_OR_RETURN(ConfigValue value,
                            IsPlainLines(text) ? ParsePlainLines(text, path) : ParseConfigText(text, path));
  ModelKeys keys;
  keys.model.layers = 0;
  keys.model.kv_bytes_per_token = -1;
  keys.model.floor_s = -1;
  std::vector<RunKeys> runs;
  ConfigSchema schema;
  DeclareModelKeys(schema, keys, /*required=*/false);
  schema.Maps<RunKeys>("runs", &runs, DeclareRunKeys, {.min_items = 1, .max_items = kMaxRuns, .required = true},
                       "What was measured");
  RUNAHEAD_RETURN_IF_ERROR(schema.Apply(WithPairsAsMaps(std::move(value))));
  RUNAHEAD_RETURN_IF_ERROR(schema.Finish(path));

  FitFile file;
  file.assumed = WhatIsAssumed(keys.model.layers == 0, keys.model.kv_bytes_per_token < 0);
  if (keys.model.layers == 0) keys.model.layers = kUsualLayers;
  if (keys.model.kv_bytes_per_token < 0) keys.model.kv_bytes_per_token = kUsualKvBytes;
  file.find_floor = std::exchange(keys.model.floor_s, std::max(0.0, keys.model.floor_s)) < 0;
  RUNAHEAD_ASSIGN_OR_RETURN(file.model, ModelOf(path, keys));
  size_t widest = 1;
  for (size_t i = 0; i < runs.size(); ++i) {
    absl::StatusOr<TimedRun> run = TimedRunOf(runs[i]);
    if (!run.ok()) return InFile(absl::StrCat(path, ": runs[", i, "]"), run.status());
    widest = std::max(widest, run->parts.size());
    file.runs.push_back(*std::move(run));
  }
  const absl::Status check = CheckCostModel(file.model, static_cast<int>(widest));
  if (!check.ok()) return InFile(path, check);
  file.find_latency = keys.latency_s < 0 && keys.links.empty() && widest > 1;
  return file;
}

absl::StatusOr<CostFit> FitOf(const FitFile& file) {
  RUNAHEAD_ASSIGN_OR_RETURN(CostFit three, FitCostModel(file.model, file.runs, {}));
  FitChoice more;
  more.floor = file.find_floor;
  more.latency = file.find_latency;
  const size_t constants = 3 + (more.floor ? 1 : 0) + (more.latency ? 1 : 0);
  // As many runs as constants fit exactly, and say nothing.
  if (!three.poor() || constants == 3 || file.runs.size() <= constants) return three;
  RUNAHEAD_ASSIGN_OR_RETURN(CostFit all, FitCostModel(file.model, file.runs, more));
  return all.rms_error < three.rms_error / 2 ? all : three;
}

}  // namespace runahead
