#include "client/plan/what_if_output.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace runahead {
namespace {

using Json = nlohmann::ordered_json;

Json FitJson(const CostFit& fit, absl::Span<const TimedRun> runs) {
  Json all = Json::array();
  for (size_t i = 0; i < runs.size(); ++i) {
    all.push_back({{"schedule", ScheduleName(runs[i].schedule)},
                   {"parts", runs[i].parts},
                   {"seconds", runs[i].seconds},
                   {"predicted_s", fit.residuals[i].predicted_s},
                   {"error", fit.residuals[i].error}});
  }
  return {{"fixed_s", fit.model.fixed_s},
          {"linear_s_per_token", fit.model.linear_s_per_token},
          {"attention_s_per_token_pair", fit.model.attention_s_per_token_pair},
          {"floor_s", fit.model.floor_s},
          {"link_latency_s", fit.model.links[0].latency_s},
          {"rms_error", fit.rms_error},
          {"worst_error", fit.worst_error},
          {"poor", fit.poor()},
          {"doubts", fit.doubts},
          {"runs", std::move(all)}};
}

// "412 ms", "1.24 s": three digits, in a unit that reads well.
std::string Seconds(double seconds) {
  if (seconds == 0) return "0";
  if (seconds < 1e-3) return absl::StrFormat("%.3g us", seconds * 1e6);
  if (seconds < 0.9995) return absl::StrFormat("%.3g ms", seconds * 1e3);
  if (seconds < 999.5) return absl::StrFormat("%.3g s", seconds);
  return absl::StrFormat("%.0f s", seconds);
}

std::string Bytes(double bytes) {
  for (const auto& [unit, name] : {std::pair(1e12, "TB"), {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}}) {
    if (bytes >= unit) return absl::StrFormat("%.3g %s", bytes / unit, name);
  }
  return absl::StrFormat("%.0f bytes", bytes);
}

std::string LinksText(const CostModel& model) {
  std::vector<std::string> links;
  for (const LinkCost& link : model.links) {
    std::string text = std::isfinite(link.bytes_per_s)
                           ? absl::StrFormat("%.6g gigabits a second", link.bytes_per_s * 8 / 1e9)
                           : "no limit";
    if (link.latency_s > 0) absl::StrAppend(&text, ", latency ", Seconds(link.latency_s));
    links.push_back(std::move(text));
  }
  for (const BusCost& bus : model.buses) {
    const std::string of = bus.links.empty() ? "all" : absl::StrJoin(bus.links, ", ");
    links.push_back(absl::StrFormat("%s on a bus of %.6g gigabits a second", of, bus.bytes_per_s * 8 / 1e9));
  }
  return absl::StrJoin(links, "; ");
}

std::string SearchText(const FoundBy& search, size_t width) {
  std::string text = absl::StrFormat("parts: the best of %d that were tried", search.evaluations);
  if (search.end == SearchEnd::kEvaluations) text += ", the most that a search tries: it ended before its last step";
  // Over slow links the paper's levels end in a corner, however few the workers.
  if (!search.thorough && width > 1) text += "; --search thorough (the default) may find better ones";
  return text;
}

// "", where there is nothing to compare with.
std::string BesideOneWorker(double single_s, double ttft_s) {
  if (!(ttft_s > 0) || !(single_s > 0)) return "";
  return absl::StrFormat("; worker 0 alone takes %s, %.2f times as long", Seconds(single_s), single_s / ttft_s);
}

// How the known beginning came, and what the chain would take without it.
std::string KnownText(const WhatIfAnswer& answer) {
  std::string pace = "no limit";
  if (std::isfinite(answer.known.bytes_per_s)) {
    pace = absl::StrFormat("%.6g gigabits a second", answer.known.bytes_per_s * 8 / 1e9);
  }
  return absl::StrFormat("known: %d tokens, %s to worker 0; %s\nfrom the first token on: %s with %s\n",
                         answer.known.tokens, Bytes(answer.run.known_bytes), pace, Seconds(answer.whole->ttft_s),
                         absl::StrJoin(answer.whole->parts, " + "));
}

}  // namespace

std::string DoubtsText(const CostFit& fit, absl::string_view indent) {
  constexpr size_t kShown = 4;  // many runs may be off
  std::string text;
  for (size_t i = 0; i < std::min(kShown, fit.doubts.size()); ++i) {
    absl::StrAppend(&text, indent, fit.doubts[i], "\n");
  }
  if (fit.doubts.size() > kShown) absl::StrAppend(&text, indent, "and ", fit.doubts.size() - kShown, " more\n");
  return text;
}

std::string WhatIfJson(const WhatIfAnswer& answer, const CostFit* fit, absl::Span<const TimedRun> runs) {
  Json json = {{"ttft_s", answer.run.ttft_s},
               {"parts", answer.parts},
               {"fractions", answer.fractions},
               {"waiting_s", answer.run.waiting_s},
               {"traffic_entries", answer.run.traffic_entries},
               {"busy_s", answer.run.busy_s},
               {"traffic_bytes", answer.run.traffic_bytes},
               {"dot_products", answer.run.dot_products},
               {"single_ttft_s", answer.single_ttft_s},
               {"schedule", ScheduleName(answer.schedule)}};
  if (answer.whole) {
    json["known_tokens"] = answer.known.tokens;
    json["known_bytes"] = answer.run.known_bytes;
    json["whole"] = {{"ttft_s", answer.whole->ttft_s}, {"parts", answer.whole->parts}};
  }
  if (answer.search) {
    json["search"] = {{"name", answer.search->thorough ? "thorough" : "paper"},
                      {"evaluations", answer.search->evaluations},
                      {"end", SearchEndName(answer.search->end)}};
  }
  if (fit != nullptr) json["fit"] = FitJson(*fit, runs);
  return json.dump() + "\n";
}

std::string WhatIfText(const WhatIfAnswer& answer, const CostModel& model) {
  const int64_t tokens = std::accumulate(answer.parts.begin(), answer.parts.end(), int64_t{0});
  const size_t width = answer.parts.size();
  std::string text = absl::StrFormat(
      "%s, %d tokens%s on %d worker%s: first token after %s%s\n\n", ScheduleName(answer.schedule), tokens,
      answer.whole ? absl::StrCat(" behind ", answer.known.tokens, " known ones") : "", width, width == 1 ? "" : "s",
      Seconds(answer.run.ttft_s), width == 1 ? "" : BesideOneWorker(answer.single_ttft_s, answer.run.ttft_s));
  absl::StrAppendFormat(&text, "  worker     tokens   share        busy     waiting\n");
  for (size_t i = 0; i < width; ++i) {
    absl::StrAppendFormat(&text, "%8d %10d %6.1f%% %11s %11s\n", i, answer.parts[i], 100 * answer.fractions[i],
                          Seconds(answer.run.busy_s[i]), Seconds(answer.run.waiting_s[i]));
  }
  if (width > 1) {
    absl::StrAppend(&text, "\n");
    if (answer.search) absl::StrAppend(&text, SearchText(*answer.search, width), "\n");
    absl::StrAppendFormat(&text, "traffic: %d (K, V) entries a layer, %s in all; links: %s\n",
                          answer.run.traffic_entries, Bytes(answer.run.traffic_bytes), LinksText(model));
  }
  if (answer.whole) absl::StrAppend(&text, width > 1 ? "" : "\n", KnownText(answer));
  return text;
}

std::string FitText(const CostFit& fit, absl::Span<const TimedRun> runs) {
  const CostModel& model = fit.model;
  std::string text = absl::StrFormat(
      "fitted to %d runs:\n  fixed_s: %.4g\n  linear_s_per_token: %.4g\n  attention_s_per_token_pair: %.4g\n",
      runs.size(), model.fixed_s, model.linear_s_per_token, model.attention_s_per_token_pair);
  if (model.floor_s > 0) absl::StrAppendFormat(&text, "  floor_s: %.4g\n", model.floor_s);
  if (model.links[0].latency_s > 0) absl::StrAppendFormat(&text, "  link_latency_s: %.4g\n", model.links[0].latency_s);
  absl::StrAppend(&text, "\n      tokens  workers    measured   predicted   error\n");
  for (size_t i = 0; i < runs.size(); ++i) {
    absl::StrAppendFormat(&text, "%12d %8d %11s %11s %+6.1f%%%s\n",
                          std::accumulate(runs[i].parts.begin(), runs[i].parts.end(), int64_t{0}), runs[i].parts.size(),
                          Seconds(runs[i].seconds), Seconds(fit.residuals[i].predicted_s), 100 * fit.residuals[i].error,
                          runs[i].parts.size() == 1 ? "" : "  " + std::string(ScheduleName(runs[i].schedule)));
  }
  absl::StrAppendFormat(&text, "errors: %.1f%% in root mean square, %.1f%% at most\n", 100 * fit.rms_error,
                        100 * fit.worst_error);
  if (fit.poor()) absl::StrAppend(&text, "THE FIT IS POOR, do not rely on what follows:\n", DoubtsText(fit, "  "));
  return absl::StrCat(text, "\n");
}

}  // namespace runahead
