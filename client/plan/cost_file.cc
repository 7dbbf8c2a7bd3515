#include "client/plan/cost_file.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/plan/cost_keys.h"
#include "kernels/base/status_macros.h"
#include "scheduler/partition/partition_search.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

constexpr int64_t kMaxLayers = 10000;  // as CheckCostModel
// Beyond any machine, and small enough that no product of them overflows.
constexpr double kMaxSecondsPerToken = 1e3;
constexpr double kMaxBytesPerToken = 1e12;
constexpr double kMinFactor = 1e-3;
constexpr double kMaxFactor = 1e3;

void DeclareLinkKeys(ConfigSchema& schema, LinkKeys& link) {
  schema.Double("latency_s", &link.latency_s, {.min = 0, .max = kMaxCostSeconds}, "Seconds of a frame without bytes");
  schema.Double("gbps", &link.gbps, {.min = kMinLinkGbps, .max = kMaxLinkGbps}, "Gigabits a second");
}

double GbpsOf(const LinkCost& link) {
  return link.bytes_per_s * 8 / 1e9;
}

void AppendLink(std::string* out, const LinkCost& link) {
  absl::StrAppend(out, "{latency_s: ", link.latency_s);
  if (std::isfinite(link.bytes_per_s)) absl::StrAppend(out, ", gbps: ", GbpsOf(link));
  out->append("}");
}

}  // namespace

void DeclareModelKeys(ConfigSchema& schema, ModelKeys& keys, bool required) {
  CostModel& model = keys.model;
  schema.Int("layers", &model.layers, {.min = 1, .max = kMaxLayers, .required = required}, "Layers of the model");
  schema.Double("kv_bytes_per_token", &model.kv_bytes_per_token,
                {.min = 0, .max = kMaxBytesPerToken, .required = required}, "K and V of a token, all layers");
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
}

absl::StatusOr<CostModel> ModelOf(const std::string& path, const ModelKeys& keys) {
  CostModel model = keys.model;
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

absl::StatusOr<CostModel> ParseCostFile(const std::string& text, const std::string& name) {
  ModelKeys keys;
  ConfigSchema schema;
  DeclareModelKeys(schema, keys, /*required=*/true);
  CostModel& model = keys.model;
  schema.Double("fixed_s", &model.fixed_s, {.min = 0, .max = kMaxCostSeconds}, "Seconds however many the tokens");
  schema.Double("linear_s_per_token", &model.linear_s_per_token,
                {.min = 0, .max = kMaxSecondsPerToken, .required = true}, "Seconds a token");
  schema.Double("attention_s_per_token_pair", &model.attention_s_per_token_pair,
                {.min = 0, .max = kMaxSecondsPerToken, .required = true}, "Seconds a pair of query and key");
  RUNAHEAD_RETURN_IF_ERROR(ReadConfigText(text, name, schema));
  RUNAHEAD_RETURN_IF_ERROR(schema.Finish(name));
  return ModelOf(name, keys);
}

absl::StatusOr<CostModel> ReadCostFile(const std::string& path) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  return ParseCostFile(text, path);
}

absl::StatusOr<std::string> PrintCostFile(const CostModel& model, const std::vector<std::string>& comments) {
  std::string text;
  for (std::string comment : comments) {
    const auto steers = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
    std::replace_if(comment.begin(), comment.end(), steers, '?');
    absl::StrAppend(&text, "# ", comment, "\n");
  }
  const auto add = [&text](const char* key, const auto& value) { absl::StrAppend(&text, key, ": ", value, "\n"); };
  const auto add_unless = [&add](double usual, const char* key, double value) {
    if (value != usual) add(key, value);
  };
  const CostModel usual;
  add("layers", model.layers);
  add("kv_bytes_per_token", model.kv_bytes_per_token);
  add("fixed_s", model.fixed_s);
  add("linear_s_per_token", model.linear_s_per_token);
  add("attention_s_per_token_pair", model.attention_s_per_token_pair);
  add_unless(usual.floor_s, "floor_s", model.floor_s);
  add_unless(usual.logits_s, "logits_s", model.logits_s);
  add_unless(usual.qkv_share, "qkv_share", model.qkv_share);
  add("causal_skip", model.causal_skip ? "true" : "false");
  add("receive_ahead_layers", model.receive_ahead_layers);
  if (!model.worker_factors.empty())
    add("worker_factors", absl::StrCat("[", absl::StrJoin(model.worker_factors, ", "), "]"));
  add_unless(usual.together_factor, "together_factor", model.together_factor);
  if (model.links.size() == 1) {
    add_unless(0, "link_latency_s", model.links[0].latency_s);
    if (std::isfinite(model.links[0].bytes_per_s)) add("link_gbps", GbpsOf(model.links[0]));
  } else {
    add("links", absl::StrCat("[", absl::StrJoin(model.links, ", ", AppendLink), "]"));
  }
  RUNAHEAD_RETURN_IF_ERROR(ParseCostFile(text, "the new cost file").status());
  return text;
}

}  // namespace runahead
