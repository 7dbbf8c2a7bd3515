#include "client/plan/cost_keys.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/partition/partition_search.h"

namespace runahead {
namespace {

constexpr int64_t kMaxLayers = 10000;  // as CheckCostModel
// Beyond any machine, and small enough that no product of them overflows.
constexpr double kMaxBytesPerToken = 1e12;
constexpr double kMinFactor = 1e-3;
constexpr double kMaxFactor = 1e3;

void DeclareLinkKeys(ConfigSchema& schema, LinkKeys& link) {
  schema.Double("latency_s", &link.latency_s, {.min = 0, .max = kMaxCostSeconds}, "Seconds of a frame without bytes");
  schema.Double("gbps", &link.gbps, {.min = kMinLinkGbps, .max = kMaxLinkGbps}, "Gigabits a second");
}

void DeclareBusKeys(ConfigSchema& schema, BusKeys& bus) {
  schema.Ints("links", &bus.links, {.min = 0, .max = kMaxSearchWidth - 2},
              {.min_items = 1, .max_items = kMaxSearchWidth - 1}, "Links on this bus, counted from 0");
  schema.Double("gbps", &bus.gbps, {.min = kMinLinkGbps, .max = kMaxLinkGbps, .required = true},
                "Gigabits a second of all its links together, in a direction");
}

}  // namespace

void DeclareModelKeys(ConfigSchema& schema, ModelKeys& keys, bool required) {
  CostModel& model = keys.model;
  model.receive_ahead_layers = kRunaheadReceiveAhead;
  schema.Int("layers", &model.layers, {.min = 1, .max = kMaxLayers, .required = required}, "Layers of the model");
  schema.Double("kv_bytes_per_token", &model.kv_bytes_per_token,
                {.min = 0, .max = kMaxBytesPerToken, .required = required}, "K and V of a token, all layers");
  schema.Int("window_layers", &model.window_layers, {.min = 0, .max = kMaxLayers},
             "Of the layers, those that see a window");
  schema.Int("window", &model.window, {.min = 0, .max = kMaxPlanTokens}, "How many tokens a query sees in these");
  schema.Bool("causal_skip", &model.causal_skip, "Whether attention computes only what causality needs");
  schema.Double("floor_s", &model.floor_s, {.min = 0, .max = kMaxCostSeconds}, "The least time however few the tokens");
  schema.Double("logits_s", &model.logits_s, {.min = 0, .max = kMaxCostSeconds}, "After the last worker's last layer");
  schema.Double("qkv_share", &model.qkv_share, {.min = 0, .max = 1}, "Share of the time until K and V are there");
  schema.Int("receive_ahead_layers", &model.receive_ahead_layers, {.min = 1, .max = kMaxLayers},
             "Layers that frames may come early");
  schema.Doubles("worker_factors", &model.worker_factors, {.min = kMinFactor, .max = kMaxFactor},
                 {.max_items = kMaxSearchWidth}, "How many times as long each worker takes");
  schema.Double("together_factor", &model.together_factor, {.min = kMinFactor, .max = kMaxFactor},
                "How many times as long each takes in a chain, where the others work too");
  schema.Double("link_latency_s", &keys.latency_s, {.min = 0, .max = kMaxCostSeconds}, "Latency of every link");
  schema.Double("link_gbps", &keys.gbps, {.min = kMinLinkGbps, .max = kMaxLinkGbps}, "Bandwidth of every link");
  schema.Maps<LinkKeys>("links", &keys.links, DeclareLinkKeys, {.min_items = 1, .max_items = kMaxSearchWidth - 1},
                        "The links one by one");
  schema.Maps<BusKeys>("buses", &keys.buses, DeclareBusKeys, {.min_items = 1, .max_items = kMaxSearchWidth - 1},
                       "Links of one host that share what it can carry");
}

absl::StatusOr<CostModel> ModelOf(const std::string& path, const ModelKeys& keys) {
  CostModel model = keys.model;
  for (const BusKeys& bus : keys.buses) {
    model.buses.push_back({{bus.links.begin(), bus.links.end()}, BytesPerSecond(bus.gbps)});
  }
  if (keys.links.empty()) {
    model.links[0].latency_s = std::max(0.0, keys.latency_s);
    if (keys.gbps > 0) model.links[0].bytes_per_s = BytesPerSecond(keys.gbps);
    return model;
  }
  if (keys.latency_s >= 0 || keys.gbps > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": links: given beside link_latency_s or link_gbps; allowed: one form of the two"));
  }
  model.links.clear();
  for (const LinkKeys& link : keys.links) {
    LinkCost& cost = model.links.emplace_back();
    cost.latency_s = link.latency_s;
    if (link.gbps > 0) cost.bytes_per_s = BytesPerSecond(link.gbps);
  }
  return model;
}

}  // namespace runahead
