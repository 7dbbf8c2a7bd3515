#include "client/profile/profile_report.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/plan/what_if_output.h"

namespace runahead {
namespace {

using Json = nlohmann::ordered_json;

// Fewer do not tell an outlier from the rest.
constexpr int kTellingProfileRounds = 3;

double Gbps(double bytes_per_s) {
  return bytes_per_s * 8 / 1e9;
}

const LinkCost& LinkAt(const LineProfile& profile, size_t link) {
  return LinkOf(profile.fit.model, static_cast<int>(link));
}

std::string LinkText(const LineProfile& profile, size_t link) {
  const LinkFinding& finding = profile.links[link];
  const std::string rate =
      finding.bandwidth_seen
          ? absl::StrFormat("%.3g gigabits a second", Gbps(LinkAt(profile, link).bytes_per_s))
          : absl::StrFormat("too fast to be seen: at least %.2g gigabits a second, taken as no limit",
                            Gbps(finding.least_bytes_per_s));
  const std::string latency =
      finding.latency_seen ? absl::StrFormat("latency %.3g ms", 1e3 * LinkAt(profile, link).latency_s)
                           : absl::StrFormat("latency at most %.2g ms, taken as 0", 1e3 * finding.most_latency_s);
  return absl::StrCat(rate, "; ", latency);
}

std::vector<std::string> LinkLines(const ProfiledLine& line, const LineProfile& profile) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < profile.links.size(); ++i) {
    lines.push_back(absl::StrCat("link ", line.workers[i], " to ", line.workers[i + 1], ": ", LinkText(profile, i)));
  }
  return lines;
}

double FactorOf(const LineProfile& profile, size_t worker) {
  const std::vector<double>& factors = profile.fit.model.worker_factors;
  return factors.empty() ? 1 : factors[worker];
}

std::string WorkersText(const ProfiledLine& line, const LineProfile& profile) {
  std::vector<std::string> workers;
  for (size_t i = 0; i < line.workers.size(); ++i) {
    workers.push_back(absl::StrFormat("%s %.3g", line.workers[i], FactorOf(profile, i)));
  }
  return absl::StrCat("times as long as ", line.workers[0], ": ", absl::StrJoin(workers, ", "));
}

std::string RunsText(const LineTimes& times) {
  std::string text = absl::StrFormat("%d runs in %.0f s", times.runs, absl::ToDoubleSeconds(times.took));
  if (times.rounds < kTellingProfileRounds) {
    absl::StrAppend(&text, ", only ", times.rounds, times.rounds == 1 ? " of each" : " or so of each",
                    ": give more --budget");
  }
  return text;
}

double Micro(double seconds) {
  return 1e6 * seconds;
}

std::string LanesText(const v1::LaneProfile& lanes) {
  std::string text = absl::StrCat("decode worker ", lanes.worker(), ": its link");
  for (const v1::LaneProfile::LinkRate& rate : lanes.link()) {
    absl::StrAppendFormat(&text, ", %d KiB at a time %.4g MB/s there and %.4g back", rate.block_bytes() >> 10,
                          rate.to_device_bytes_per_s() / 1e6, rate.to_host_bytes_per_s() / 1e6);
  }
  absl::StrAppendFormat(&text,
                        "; a small copy %.3g us. A layer: projections and MLP %.4g us, a position's attention "
                        "%.3g us",
                        Micro(lanes.copy_latency_s()), Micro(lanes.project_s()), Micro(lanes.attend_s()));
  if (lanes.recompute_s() > 0) absl::StrAppendFormat(&text, ", its recomputation %.3g us", Micro(lanes.recompute_s()));
  if (lanes.host_bytes_per_s() == 0) return absl::StrCat(text, "\n");
  absl::StrAppendFormat(&text, ". Host lane: %.4g MB/s, the way there and back %.3g us", lanes.host_bytes_per_s() / 1e6,
                        Micro(lanes.signal_s()));
  if (lanes.host_shared_bytes_per_s() > 0) {
    absl::StrAppendFormat(&text, ", with copies beside it %.4g MB/s together", lanes.host_shared_bytes_per_s() / 1e6);
  }
  return absl::StrCat(text, "\n");
}

Json LanesJson(const v1::LaneProfile& lanes) {
  Json link = Json::array();
  for (const v1::LaneProfile::LinkRate& rate : lanes.link()) {
    link.push_back({{"block_bytes", rate.block_bytes()},
                    {"to_device_bytes_per_s", rate.to_device_bytes_per_s()},
                    {"to_host_bytes_per_s", rate.to_host_bytes_per_s()}});
  }
  return {{"name", lanes.worker()},
          {"link", std::move(link)},
          {"copy_latency_s", lanes.copy_latency_s()},
          {"project_s", lanes.project_s()},
          {"attend_s", lanes.attend_s()},
          {"recompute_s", lanes.recompute_s()},
          {"signal_s", lanes.signal_s()},
          {"host_bytes_per_s", lanes.host_bytes_per_s()},
          {"host_shared_bytes_per_s", lanes.host_shared_bytes_per_s()}};
}

}  // namespace

std::string ProfileText(const ProfiledLine& line, const LineTimes& times, const LineProfile& profile) {
  std::string text = absl::StrCat(RunsText(times), "; ", FitText(profile.fit, profile.runs));
  for (const v1::LaneProfile& lanes : line.decode) absl::StrAppend(&text, LanesText(lanes));
  if (line.workers.size() == 1) {
    return absl::StrCat(text, "one worker: nothing is known of links, or of chains\n");
  }
  absl::StrAppend(&text, WorkersText(line, profile), "\n");
  absl::StrAppendFormat(&text, "in a chain, where all work: %.3g times as long\n", profile.fit.model.together_factor);
  for (const std::string& link : LinkLines(line, profile)) absl::StrAppend(&text, link, "\n");
  absl::StrAppendFormat(&text, "predictions for chains: median error %.1f%%\n", 100 * profile.chain_error);
  return text;
}

std::vector<std::string> ProfileComments(const ProfiledLine& line, const LineTimes& times, const LineProfile& profile) {
  std::vector<std::string> comments = {
      absl::StrCat(line.model, ", ", line.dtype, ", on ", absl::StrJoin(line.workers, ", "), "; ", line.date),
      absl::StrFormat("runahead profile: %s; errors %.1f%% in root mean square, %.1f%% at most", RunsText(times),
                      100 * profile.fit.rms_error, 100 * profile.fit.worst_error)};
  if (line.workers.size() == 1) comments.push_back("one worker: nothing is known of links, or of chains");
  for (std::string& link : LinkLines(line, profile)) comments.push_back(std::move(link));
  if (!profile.links.empty()) {
    comments.push_back(absl::StrFormat("predictions for chains: median error %.1f%%", 100 * profile.chain_error));
  }
  for (const std::string& doubt : profile.fit.doubts) comments.push_back(absl::StrCat("THE FIT IS POOR: ", doubt));
  return comments;
}

std::string ProfileJson(const std::string& file, const ProfiledLine& line, const LineTimes& times,
                        const LineProfile& profile) {
  const CostModel& model = profile.fit.model;
  Json workers = Json::array(), links = Json::array(), runs = Json::array(), decode = Json::array();
  for (const v1::LaneProfile& lanes : line.decode) decode.push_back(LanesJson(lanes));
  for (size_t i = 0; i < line.workers.size(); ++i) {
    workers.push_back({{"name", line.workers[i]}, {"factor", FactorOf(profile, i)}});
  }
  for (size_t i = 0; i < profile.links.size(); ++i) {
    const LinkFinding& finding = profile.links[i];
    Json link = Json::object();
    if (finding.bandwidth_seen) {
      link["gbps"] = Gbps(LinkAt(profile, i).bytes_per_s);
    } else {
      link["gbps_at_least"] = Gbps(finding.least_bytes_per_s);
    }
    if (finding.latency_seen) {
      link["latency_s"] = LinkAt(profile, i).latency_s;
    } else {
      link["latency_s_at_most"] = finding.most_latency_s;
    }
    links.push_back(std::move(link));
  }
  for (size_t i = 0; i < profile.runs.size(); ++i) {
    runs.push_back({{"parts", profile.runs[i].parts},
                    {"measured_ttft_s", profile.runs[i].seconds},
                    {"predicted_ttft_s", profile.fit.residuals[i].predicted_s},
                    {"error", profile.fit.residuals[i].error}});
  }
  return Json{{"file", file},
              {"model", line.model},
              {"dtype", line.dtype},
              {"layers", model.layers},
              {"kv_bytes_per_token", model.kv_bytes_per_token},
              {"window_layers", model.window_layers},
              {"window", model.window},
              {"fixed_s", model.fixed_s},
              {"linear_s_per_token", model.linear_s_per_token},
              {"attention_s_per_token_pair", model.attention_s_per_token_pair},
              {"floor_s", model.floor_s},
              {"together_factor", model.together_factor},
              {"workers", std::move(workers)},
              {"links", std::move(links)},
              {"decode", std::move(decode)},
              {"rms_error", profile.fit.rms_error},
              {"worst_error", profile.fit.worst_error},
              {"chain_error", profile.chain_error},
              {"poor", profile.fit.poor()},
              {"doubts", profile.fit.doubts},
              {"runs", std::move(runs)},
              {"rounds", times.rounds},
              {"took_s", absl::ToDoubleSeconds(times.took)}}
      .dump();
}

}  // namespace runahead
