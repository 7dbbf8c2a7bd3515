#include "scheduler/partition/cost_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Far above any model: what a simulation allocates grows with it.
constexpr int64_t kMaxLayers = 10000;

absl::Status Refuse(const std::string& field, double value, const char* wanted) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is not ", wanted));
}

absl::Status CheckNotNegative(const std::string& field, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return Refuse(field, value, "a number of at least 0");
}

absl::Status CheckLink(const std::string& name, const LinkCost& link) {
  RUNAHEAD_RETURN_IF_ERROR(CheckNotNegative(name + ".latency_s", link.latency_s));
  if (!(link.bytes_per_s > 0)) return Refuse(name + ".bytes_per_s", link.bytes_per_s, "above 0");
  if (!(link.slowdown.probability >= 0 && link.slowdown.probability <= 1)) {
    return Refuse(name + ".slowdown.probability", link.slowdown.probability, "between 0 and 1");
  }
  if (!std::isfinite(link.slowdown.max_factor) || link.slowdown.max_factor < 1) {
    return Refuse(name + ".slowdown.max_factor", link.slowdown.max_factor, "a number of at least 1");
  }
  return absl::OkStatus();
}

absl::Status CheckBuses(const CostModel& model) {
  for (size_t i = 0; i < model.buses.size(); ++i) {
    const std::string name = absl::StrCat("buses[", i, "]");
    const BusCost& bus = model.buses[i];
    if (!(bus.bytes_per_s > 0)) return Refuse(name + ".bytes_per_s", bus.bytes_per_s, "above 0");
    if (bus.links.empty() && model.buses.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ".links: missing; only where there is one bus it may stand for all links"));
    }
    for (const int link : bus.links) {
      const bool exists = link >= 0 && (model.links.size() == 1 || static_cast<size_t>(link) < model.links.size());
      if (!exists) {
        return absl::InvalidArgumentError(absl::StrCat(name, ".links: there is no link ", link, ", counted from 0"));
      }
      if (BusOf(model, link) != static_cast<int>(i)) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, ".links: link ", link, " is on buses[", BusOf(model, link), "] already"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCostModel(const CostModel& model, int width) {
  if (width < 1) return Refuse("width", width, "at least 1");
  if (model.layers < 1 || model.layers > kMaxLayers) {
    return absl::InvalidArgumentError(absl::StrCat("layers: ", model.layers, " is not between 1 and ", kMaxLayers));
  }
  if (model.window_layers < 0 || model.window_layers > model.layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("window_layers: ", model.window_layers, " is not between 0 and the ", model.layers, " layers"));
  }
  if (model.window < 0 || (model.window > 0) != (model.window_layers > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("window: ", model.window, " tokens beside window_layers ",
                                                   model.window_layers, "; both are above 0, or neither is"));
  }
  RUNAHEAD_RETURN_IF_ERROR(CheckNotNegative("kv_bytes_per_token", model.kv_bytes_per_token));
  RUNAHEAD_RETURN_IF_ERROR(CheckNotNegative("fixed_s", model.fixed_s));
  RUNAHEAD_RETURN_IF_ERROR(CheckNotNegative("linear_s_per_token", model.linear_s_per_token));
  RUNAHEAD_RETURN_IF_ERROR(CheckNotNegative("attention_s_per_token_pair", model.attention_s_per_token_pair));
  RUNAHEAD_RETURN_IF_ERROR(CheckNotNegative("floor_s", model.floor_s));
  RUNAHEAD_RETURN_IF_ERROR(CheckNotNegative("logits_s", model.logits_s));
  if (!(model.qkv_share >= 0 && model.qkv_share <= 1)) return Refuse("qkv_share", model.qkv_share, "between 0 and 1");
  if (model.receive_ahead_layers < 1) {
    return Refuse("receive_ahead_layers", static_cast<double>(model.receive_ahead_layers), "at least 1");
  }
  const size_t workers = static_cast<size_t>(width);
  if (!model.worker_factors.empty() && model.worker_factors.size() < workers) {
    return absl::InvalidArgumentError(absl::StrCat("worker_factors: ", model.worker_factors.size(),
                                                   " given, a chain of ", width, " workers needs as many"));
  }
  for (size_t i = 0; i < model.worker_factors.size(); ++i) {
    if (std::isfinite(model.worker_factors[i]) && model.worker_factors[i] > 0) continue;
    return Refuse(absl::StrCat("worker_factors[", i, "]"), model.worker_factors[i], "above 0");
  }
  if (!std::isfinite(model.together_factor) || model.together_factor <= 0) {
    return Refuse("together_factor", model.together_factor, "above 0");
  }
  if (model.links.empty() || (model.links.size() != 1 && model.links.size() + 1 < workers)) {
    return absl::InvalidArgumentError(absl::StrCat("links: ", model.links.size(), " given, a chain of ", width,
                                                   " workers needs ", width - 1, ", or one that stands for all"));
  }
  for (size_t i = 0; i < model.links.size(); ++i) {
    RUNAHEAD_RETURN_IF_ERROR(CheckLink(absl::StrCat("links[", i, "]"), model.links[i]));
  }
  return CheckBuses(model);
}

int BusOf(const CostModel& model, int link) {
  for (size_t i = 0; i < model.buses.size(); ++i) {
    const std::vector<int>& links = model.buses[i].links;
    if (links.empty() || std::find(links.begin(), links.end(), link) != links.end()) return static_cast<int>(i);
  }
  return -1;
}

LayerTimes TimesOfLayer(const CostModel& model, int worker, int64_t tokens, int64_t pairs) {
  const double matrices = model.fixed_s + model.linear_s_per_token * static_cast<double>(tokens);
  const double attention = model.attention_s_per_token_pair * static_cast<double>(pairs);
  LayerTimes times{model.qkv_share * matrices, (1 - model.qkv_share) * matrices + attention};
  const double whole = matrices + attention;
  if (whole < model.floor_s) {
    // Both steps wait for their kernels to be started, each in proportion to its work.
    const double first = whole > 0 ? times.qkv_s / whole : model.qkv_share;
    times = {first * model.floor_s, (1 - first) * model.floor_s};
  }
  const double factor = model.worker_factors.empty() ? 1.0 : model.worker_factors[worker];
  const double share = factor / static_cast<double>(model.layers);
  return {times.qkv_s * share, times.rest_s * share};
}

int64_t AttentionPairs(int64_t begin, int64_t end, int64_t keys, bool causal_skip) {
  const int64_t queries = end - begin;
  return causal_skip ? queries * begin + queries * (queries + 1) / 2 : queries * keys;
}

int64_t WindowPairs(int64_t begin, int64_t end, int64_t window) {
  const int64_t full = std::clamp(window, begin, end);  // from here on queries see a whole window
  return AttentionPairs(begin, full, full, /*causal_skip=*/true) + (end - full) * window;
}

bool IsWindowLayer(const CostModel& model, int64_t layer) {
  return (layer + 1) * model.window_layers / model.layers > layer * model.window_layers / model.layers;
}

}  // namespace runahead
