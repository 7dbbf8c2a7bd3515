#include "client/bench/bench_report.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/base/printable.h"

namespace runahead {
namespace {

using ReportJson = nlohmann::ordered_json;

constexpr int kTableWidth = 50;  // characters, as in vLLM's

void AddTitle(const char* title, char fill, std::string& text) {
  const std::string words = title;
  const size_t left = (kTableWidth - words.size()) / 2;
  absl::StrAppend(&text, std::string(left, fill), words, std::string(kTableWidth - words.size() - left, fill), "\n");
}

void AddCount(const std::string& name, int64_t value, std::string& text) {
  absl::StrAppendFormat(&text, "%-40s %d\n", name + ":", value);
}

void AddCountUnlessNone(const char* name, int64_t value, std::string& text) {
  if (value > 0) AddCount(name, value, text);
}

void AddFigure(const std::string& name, double value, std::string& text) {
  absl::StrAppendFormat(&text, "%-40s %.2f\n", name + ":", value);
}

void AddLatencies(const char* title, const char* name, const Distribution& seconds, std::string& text) {
  AddTitle(title, '-', text);
  const auto add = [&](const char* what, double value) {
    AddFigure(absl::StrCat(what, " ", name, " (ms)"), 1e3 * value, text);
  };
  add("Mean", seconds.mean);
  add("Median", seconds.median);
  add("Std", seconds.std);
  add("P90", seconds.p90);
  add("P95", seconds.p95);
  add("P99", seconds.p99);
}

// What would otherwise flatter the figures, or change what they mean.
std::string Doubts(const BenchSettings& settings, const BenchSummary& summary) {
  std::string text;
  for (const FailureKind& failure : summary.failures) {
    absl::StrAppend(&text, "failed, ", failure.kind, ": ", failure.count,
                    "; the first: ", OneLine(failure.first_message), "\n");
  }
  if (summary.counted_by_events > 0) {
    absl::StrAppend(&text, summary.counted_by_events,
                    " answers came without usage: their tokens are counted by messages, and may be more\n");
  }
  if (summary.held > 0) {
    absl::StrAppendFormat(&text,
                          "%d requests waited for one of the %d under way to end, %.2f ms at most: it counts in "
                          "their times\n",
                          summary.held, settings.concurrency, 1e3 * summary.most_held_s);
  }
  if (summary.late > 0) {
    absl::StrAppendFormat(&text,
                          "LATE STARTS: %d requests were sent more than %d ms behind their time, %.2f ms at most, "
                          "for this tool did not keep the rate: it counts in their times\n",
                          summary.late, absl::ToInt64Milliseconds(kLateStart), 1e3 * summary.most_late_s);
  }
  return text;
}

void AddLatencyKeys(const char* name, const Distribution& seconds, ReportJson& json) {
  const auto add = [&](const char* what, double value) { json[absl::StrCat(what, "_", name, "_ms")] = 1e3 * value; };
  add("mean", seconds.mean);
  add("median", seconds.median);
  add("std", seconds.std);
  add("p90", seconds.p90);
  add("p95", seconds.p95);
  add("p99", seconds.p99);
}

ReportJson LimitJson(const std::optional<absl::Duration>& limit) {
  return limit ? ReportJson(absl::ToDoubleMilliseconds(*limit)) : ReportJson(nullptr);
}

void AddSettings(const BenchSettings& settings, ReportJson& json) {
  json["date"] = settings.date;
  json["door"] = settings.door;
  json["model_id"] = settings.model;
  json["prompts"] = settings.prompts;
  json["num_prompts"] = settings.requests;
  json["seed"] = settings.seed;
  json["request_rate"] = std::isfinite(settings.rate) ? ReportJson(settings.rate) : ReportJson("inf");
  json["max_concurrency"] = settings.concurrency;
  json["num_warmups"] = settings.warmup;
  json["objectives_ms"] = {{"ttft", LimitJson(settings.objectives.ttft)},
                           {"tpot", LimitJson(settings.objectives.tpot)},
                           {"e2el", LimitJson(settings.objectives.e2e)}};
}

void AddFigures(const LoadOutcome& outcome, const BenchSummary& summary, ReportJson& json) {
  json["duration"] = summary.duration_s;
  json["completed"] = summary.completed;
  json["failed"] = summary.failed;
  json["interrupted"] = summary.interrupted;
  json["unsent"] = outcome.unsent;
  ReportJson failures = ReportJson::array();
  for (const FailureKind& failure : summary.failures) {
    failures.push_back(
        {{"kind", failure.kind}, {"count", failure.count}, {"first_message", OneLine(failure.first_message)}});
  }
  json["failures"] = std::move(failures);
  json["total_input_tokens"] = summary.input_tokens;
  json["total_output_tokens"] = summary.output_tokens;
  json["total_cached_tokens"] = summary.cached_tokens;
  json["counted_by_events"] = summary.counted_by_events;
  json["request_throughput"] = summary.request_throughput;
  json["request_goodput"] = summary.goodput ? ReportJson(*summary.goodput) : ReportJson(nullptr);
  json["output_throughput"] = summary.output_throughput;
  json["total_token_throughput"] = summary.total_throughput;
  json["max_concurrent_requests"] = outcome.peak;
  AddLatencyKeys("ttft", summary.ttft, json);
  AddLatencyKeys("tpot", summary.tpot, json);
  AddLatencyKeys("itl", summary.itl, json);
  AddLatencyKeys("e2el", summary.e2e, json);
  json["late_starts"] = summary.late;
  json["max_late_ms"] = 1e3 * summary.most_late_s;
  json["held_starts"] = summary.held;
  json["max_held_ms"] = 1e3 * summary.most_held_s;
}

std::string ErrorOf(const BenchRecord& record) {
  if (record.interrupted) return "interrupted";
  if (record.status.ok()) return "";
  return absl::StrCat(FailureKindOf(record.status), ": ", OneLine(std::string(record.status.message())));
}

void AddRequests(const std::vector<BenchRecord>& records, ReportJson& json) {
  ReportJson starts = ReportJson::array(), late = ReportJson::array(), inputs = ReportJson::array();
  ReportJson outputs = ReportJson::array(), ttfts = ReportJson::array(), itls = ReportJson::array();
  ReportJson e2els = ReportJson::array(), errors = ReportJson::array();
  for (const BenchRecord& record : records) {
    starts.push_back(absl::ToDoubleSeconds(record.start));
    late.push_back(absl::ToDoubleSeconds(record.late));
    inputs.push_back(record.input_tokens);
    outputs.push_back(record.output_tokens);
    ttfts.push_back(absl::ToDoubleSeconds(record.ttft));
    ReportJson pauses = ReportJson::array();
    for (const absl::Duration pause : record.itls) pauses.push_back(absl::ToDoubleSeconds(pause));
    itls.push_back(std::move(pauses));
    e2els.push_back(absl::ToDoubleSeconds(record.e2e));
    errors.push_back(ErrorOf(record));
  }
  json["start_times"] = std::move(starts);
  json["lates"] = std::move(late);
  json["input_lens"] = std::move(inputs);
  json["output_lens"] = std::move(outputs);
  json["ttfts"] = std::move(ttfts);
  json["itls"] = std::move(itls);
  json["e2els"] = std::move(e2els);
  json["errors"] = std::move(errors);
}

}  // namespace

std::string BenchText(const BenchSettings& settings, const LoadOutcome& outcome, const BenchSummary& summary) {
  std::string text;
  AddTitle(" Serving Benchmark Result ", '=', text);
  AddCount("Successful requests", summary.completed, text);
  AddCount("Failed requests", summary.failed, text);
  AddCountUnlessNone("Interrupted requests", summary.interrupted, text);
  AddCountUnlessNone("Requests not sent", outcome.unsent, text);
  AddCount("Maximum request concurrency", settings.concurrency, text);
  if (std::isfinite(settings.rate)) AddFigure("Request rate configured (RPS)", settings.rate, text);
  AddFigure("Benchmark duration (s)", summary.duration_s, text);
  AddCount("Total input tokens", summary.input_tokens, text);
  AddCountUnlessNone("Cached input tokens", summary.cached_tokens, text);
  AddCount("Total generated tokens", summary.output_tokens, text);
  AddFigure("Request throughput (req/s)", summary.request_throughput, text);
  if (summary.goodput) AddFigure("Request goodput (req/s)", *summary.goodput, text);
  AddFigure("Output token throughput (tok/s)", summary.output_throughput, text);
  AddCount("Peak concurrent requests", outcome.peak, text);
  AddFigure("Total Token throughput (tok/s)", summary.total_throughput, text);
  AddLatencies("Time to First Token", "TTFT", summary.ttft, text);
  AddLatencies("Time per Output Token (excl. 1st token)", "TPOT", summary.tpot, text);
  AddLatencies("Inter-token Latency", "ITL", summary.itl, text);
  AddLatencies("End-to-end Latency", "E2EL", summary.e2e, text);
  absl::StrAppend(&text, std::string(kTableWidth, '='), "\n", Doubts(settings, summary));
  return text;
}

std::string BenchJson(const BenchSettings& settings, const LoadOutcome& outcome, const BenchSummary& summary) {
  ReportJson json;
  AddSettings(settings, json);
  AddFigures(outcome, summary, json);
  AddRequests(outcome.records, json);
  return json.dump(-1, ' ', false, ReportJson::error_handler_t::replace);
}

}  // namespace runahead
