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

constexpr double kMaxSecondsPerToken = 1e3;  // as kMaxCostSeconds

double GbpsOf(const LinkCost& link) {
  return link.bytes_per_s * 8 / 1e9;
}

void AppendLink(std::string* out, const LinkCost& link) {
  absl::StrAppend(out, "{latency_s: ", link.latency_s);
  if (std::isfinite(link.bytes_per_s)) absl::StrAppend(out, ", gbps: ", GbpsOf(link));
  out->append("}");
}

void AppendBus(std::string* out, const BusCost& bus) {
  out->append("{");
  if (!bus.links.empty()) absl::StrAppend(out, "links: [", absl::StrJoin(bus.links, ", "), "], ");
  absl::StrAppend(out, "gbps: ", bus.bytes_per_s * 8 / 1e9, "}");
}

}  // namespace

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
  if (model.window_layers > 0) {
    add("window_layers", model.window_layers);
    add("window", model.window);
  }
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
  if (!model.buses.empty()) add("buses", absl::StrCat("[", absl::StrJoin(model.buses, ", ", AppendBus), "]"));
  RUNAHEAD_RETURN_IF_ERROR(ParseCostFile(text, "the new cost file").status());
  return text;
}

}  // namespace runahead
