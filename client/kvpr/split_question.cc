#include "client/kvpr/split_question.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/kv_group.h"
#include "kernels/base/kv_table.h"
#include "kernels/base/op_params.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// One lane of the whole batch in one layer.
struct LaneLine {
  const char* name;
  int64_t tokens = 0;
  double bytes = 0;  // that it takes from host memory
  double seconds = 0;
};

LaneCosts LaneCostsOf(const SplitQuestion& of) {
  LaneCosts costs;
  costs.link_bytes_per_s = of.link_bytes_per_s;
  costs.kv_bytes = of.kv_bytes;
  costs.x_bytes = of.x_bytes;
  // Two products, X with W_K and X with W_V: 2 h d operations each.
  costs.recompute_s = 4 * static_cast<double>(of.hidden) * static_cast<double>(of.kv_dim) / of.flops;
  costs.project_s = of.project_s;
  costs.signal_s = of.signal_s;
  const double device_kv_bytes = 2 * static_cast<double>(of.kv_dim) * of.dtype_bytes;
  if (of.device_bytes_per_s > 0) costs.attend_s = device_kv_bytes / of.device_bytes_per_s;
  if (of.host_lane_bytes_per_s > 0) costs.host_attend_s = of.kv_bytes / of.host_lane_bytes_per_s;
  if (of.host_bytes_per_s > 0) costs.host_bytes_per_s = of.host_bytes_per_s;
  return costs;
}

std::vector<LaneLine> LaneLinesOf(const SplitAnswer& answer) {
  const LaneRows& rows = answer.plan.lanes.rows;
  const LaneCosts& costs = answer.costs;
  const double x_bytes = static_cast<double>(rows.x_streamed) * costs.x_bytes;
  const double kv_bytes = static_cast<double>(rows.streamed) * costs.kv_bytes;
  const double host_bytes = static_cast<double>(rows.host) * costs.kv_bytes;
  return {{"recomputed", rows.recomputed, x_bytes, static_cast<double>(rows.computed) * costs.recompute_s},
          {"streamed", rows.streamed, kv_bytes, kv_bytes / costs.link_bytes_per_s},
          {"host", rows.host, host_bytes, rows.host > 0 ? static_cast<double>(rows.host) * costs.host_attend_s : 0},
          {"resident", rows.resident, 0, static_cast<double>(rows.resident) * costs.attend_s}};
}

// The smallest and the largest l.
std::pair<int64_t, int64_t> SplitRange(const SplitAnswer& answer) {
  const auto [least, most] =
      std::minmax_element(answer.plan.lanes.cuts.begin(), answer.plan.lanes.cuts.end(),
                          [](const LaneCuts& a, const LaneCuts& b) { return a.recomputed_end < b.recomputed_end; });
  return {least->recomputed_end, most->recomputed_end};
}

double MeanSplit(const SplitQuestion& question, const SplitAnswer& answer) {
  return static_cast<double>(answer.plan.lanes.rows.recomputed) / static_cast<double>(question.batch);
}

// 1 where a step takes no time.
double SpeedUp(double before_s, double after_s) {
  return after_s > 0 ? before_s / after_s : 1;
}

}  // namespace

absl::StatusOr<double> StoredKvBytes(int64_t kv_dim, int64_t bits, double dtype_bytes) {
  if (bits != 4 && bits != 8 && bits != 16) {
    return absl::InvalidArgumentError(absl::StrCat("kv_bits: ", bits, " is none of 4, 8 and 16"));
  }
  if (kv_dim < 1) return absl::InvalidArgumentError(absl::StrCat("kv_dim: ", kv_dim, " is not at least 1"));
  if (bits == 16) return 2 * static_cast<double>(kv_dim) * dtype_bytes;
  const KvQuant quant{.bits = static_cast<int>(bits), .group = KvGroup(kv_dim)};
  if (quant.group == 0) {
    return absl::InvalidArgumentError(absl::StrCat("kv_bits: ", bits, " needs K and V in groups of 32 elements, and ",
                                                   kv_dim, " is no multiple; 16 works"));
  }
  return static_cast<double>(KvQuantRowBytes(2 * kv_dim, quant));
}

absl::StatusOr<SplitAnswer> AnswerSplit(const SplitQuestion& of) {
  SplitAnswer answer;
  answer.costs = LaneCostsOf(of);
  const LaneShape shape{.length = of.length,
                        .x_stored = of.x_tokens.value_or(of.length),
                        .l_min = of.l_min,
                        .piece_tokens = PieceTokens(of.length)};
  std::vector<LaneShape> shapes(of.batch, shape);
  const TierBudget budget{.bytes = of.budget_bytes,
                          .staging_bytes = of.staging_bytes,
                          .layers = of.layers,
                          .kv_bytes = 2 * static_cast<double>(of.kv_dim) * of.dtype_bytes,
                          .x_bytes = answer.costs.x_bytes};
  RUNAHEAD_ASSIGN_OR_RETURN(answer.plan, PlanTiers(of.objective, answer.costs, budget, shapes));
  RUNAHEAD_ASSIGN_OR_RETURN(const LanePlan streamed, SmallestSplit(of.objective, answer.costs, shapes));
  answer.streamed_s = streamed.times.layer_s;
  const auto as_a_step = [&](const LaneRows& rows) {
    return TimesOfLanes(SplitObjective::kStep, answer.costs, rows).layer_s;
  };
  answer.achievable_s = as_a_step(answer.plan.lanes.rows);
  answer.achievable_streamed_s = as_a_step(streamed.rows);
  // X that must be there stays; nothing else is recomputed, and nothing is attended on the host.
  LaneCosts window_costs = answer.costs;
  window_costs.host_attend_s = std::numeric_limits<double>::infinity();
  for (LaneShape& one : shapes) one.x_stored = one.l_min;
  RUNAHEAD_ASSIGN_OR_RETURN(const TierPlan window, PlanTiers(of.objective, window_costs, budget, shapes));
  answer.window_s = window.lanes.times.layer_s;
  return answer;
}

std::string SplitJson(const SplitQuestion& question, const SplitAnswer& answer) {
  using Json = nlohmann::ordered_json;
  const LaneTimes& times = answer.plan.lanes.times;
  Json lanes = Json::object();
  for (const LaneLine& line : LaneLinesOf(answer)) {
    lanes[line.name] = {{"tokens", line.tokens}, {"bytes", line.bytes}, {"seconds", line.seconds}};
  }
  const auto [least, most] = SplitRange(answer);
  const auto layers = static_cast<double>(question.layers);
  const Json json = {{"l", MeanSplit(question, answer)},
                     {"l_least", least},
                     {"l_most", most},
                     {"gain", SpeedUp(answer.streamed_s, times.layer_s)},
                     {"achievable",
                      {{"gain", SpeedUp(answer.achievable_streamed_s, answer.achievable_s)},
                       {"layer_s", answer.achievable_s},
                       {"step_s", answer.achievable_s * layers},
                       {"streamed_s", answer.achievable_streamed_s}}},
                     {"times",
                      {{"layer_s", times.layer_s},
                       {"step_s", times.layer_s * layers},
                       {"link_s", times.link_s},
                       {"device_s", times.device_s},
                       {"host_s", times.host_s},
                       {"shared_s", times.shared_s},
                       {"streamed_s", answer.streamed_s},
                       {"window_s", answer.window_s}}},
                     {"tiers",
                      {{"window_tokens", answer.plan.window_tokens},
                       {"x_tokens", answer.plan.x_tokens},
                       {"bytes", answer.plan.bytes},
                       {"budget_bytes", question.budget_bytes}}},
                     {"lanes", std::move(lanes)},
                     {"objective", SplitObjectiveName(question.objective)}};
  return json.dump() + "\n";
}

std::string SplitText(const SplitQuestion& question, const SplitAnswer& answer) {
  const LaneTimes& times = answer.plan.lanes.times;
  const auto [least, most] = SplitRange(answer);
  const double step_ms = 1e3 * static_cast<double>(question.layers);
  std::string text =
      absl::StrFormat("%s, %d sequences of %d: l is ", std::string(SplitObjectiveName(question.objective)),
                      question.batch, question.length);
  if (least == most) {
    absl::StrAppend(&text, least);
  } else {
    absl::StrAppendFormat(&text, "%d to %d, %.1f in the mean", least, most, MeanSplit(question, answer));
  }
  absl::StrAppendFormat(&text, "; a step takes %.3g ms, %.2f times as fast as all KV streamed\n",
                        step_ms * times.layer_s, SpeedUp(answer.streamed_s, times.layer_s));
  if (question.objective != SplitObjective::kStep) {
    absl::StrAppendFormat(&text,
                          "%s leaves out what a step cannot; with this l decode takes %.3g ms, %.2f times as fast as "
                          "all KV streamed\n",
                          std::string(SplitObjectiveName(question.objective)), step_ms * answer.achievable_s,
                          SpeedUp(answer.achievable_streamed_s, answer.achievable_s));
  }
  absl::StrAppend(&text, "\n");
  absl::StrAppendFormat(&text, "a layer        tokens   from host MB        ms\n");
  for (const LaneLine& line : LaneLinesOf(answer)) {
    absl::StrAppendFormat(&text, "%-10s %10d %14.1f %9.3f\n", line.name, line.tokens, line.bytes / 1e6,
                          line.seconds * 1e3);
  }
  absl::StrAppendFormat(&text, "\nthe link takes %.3g ms, the device %.3g ms", times.link_s * 1e3,
                        times.device_s * 1e3);
  if (times.host_s > 0) absl::StrAppendFormat(&text, ", the host %.3g ms", times.host_s * 1e3);
  absl::StrAppendFormat(&text, "; all KV streamed %.3g ms\n", answer.streamed_s * 1e3);
  if (question.budget_bytes > 0) {
    absl::StrAppendFormat(&text,
                          "on the device: the newest %d tokens of each sequence, and X of the first %d: %.3g GiB; with "
                          "a window of KV alone %.2f times as fast\n",
                          answer.plan.window_tokens, answer.plan.x_tokens,
                          static_cast<double>(answer.plan.bytes) / (1 << 30),
                          SpeedUp(answer.streamed_s, answer.window_s));
  }
  return text;
}

}  // namespace runahead
