// docs/metrics.md against what the processes count.
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "server/base/connection_metrics.h"
#include "server/base/tls_metrics.h"
#include "server/gateway/gateway_metrics.h"
#include "server/router/key_metrics.h"
#include "server/router/otlp_metrics.h"
#include "server/router/request_memory_metrics.h"
#include "server/router/router_metrics.h"
#include "server/rpc/open_door_metrics.h"
#include "server/rpc/transport_metrics.h"
#include "worker/metrics/decode_metrics.h"
#include "worker/metrics/link_metrics.h"
#include "worker/metrics/prefill_metrics.h"
#include "worker/metrics/weight_metrics.h"

namespace runahead {
namespace {

using Labels = std::map<std::string, std::set<std::string>>;  // their values

struct MetricFamily {
  std::string type;
  Labels labels;
};
using Families = std::map<std::string, MetricFamily>;

std::string Unquoted(absl::string_view text, absl::string_view quote) {
  return std::string(absl::StripSuffix(absl::StripPrefix(text, quote), quote));
}

// "`a`: `x`, `y`; `b`": a's values are x and y, b's are not said; "`a`, `b`": both are not said.
Labels LabelsOf(absl::string_view cell) {
  Labels labels;
  for (const absl::string_view part : absl::StrSplit(cell, "; ", absl::SkipWhitespace())) {
    const std::vector<std::string> said = absl::StrSplit(part, absl::MaxSplits(": ", 1));
    for (const absl::string_view name : absl::StrSplit(said[0], ", ")) labels[Unquoted(name, "`")];
    if (said.size() == 1) continue;
    for (const absl::string_view value : absl::StrSplit(said[1], ", ")) {
      labels[Unquoted(said[0], "`")].insert(Unquoted(value, "`"));
    }
  }
  return labels;
}

// The rows of the page: of metrics, and (`labels`) of its first table, of labels whose values are listed and no more.
Families Documented(Labels& labels) {
  std::ifstream file("docs/metrics.md");
  Families families;
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "| `")) continue;
    const std::vector<std::string> cells = absl::StrSplit(absl::string_view(line).substr(2), " |");
    const std::string name = Unquoted(cells[0], "`");
    if (absl::StartsWith(name, "runahead_") || absl::StartsWith(name, "process_")) {
      const std::vector<std::string> type = absl::StrSplit(absl::StripAsciiWhitespace(cells[1]), ' ');
      families[name] = {type[0], LabelsOf(absl::StripAsciiWhitespace(cells[2]))};
    } else if (name == "stage") {
      for (const absl::string_view value : absl::StrSplit(absl::StripAsciiWhitespace(cells[1]), ", ")) {
        labels[name].insert(Unquoted(value, "`"));
      }
    }
  }
  return families;
}

// name{a="x",b="y"} 0
void AddSeries(absl::string_view line, MetricFamily& family) {
  const std::vector<std::string> parts = absl::StrSplit(line, absl::ByAnyChar("{}"));
  if (parts.size() < 2) return;
  for (const absl::string_view label : absl::StrSplit(parts[1], ',')) {
    const std::vector<std::string> pair = absl::StrSplit(label, absl::MaxSplits('=', 1));
    if (pair[0] != "le") family.labels[pair[0]].insert(Unquoted(pair[1], "\""));
  }
}

Families Counted(const MetricRegistry& registry) {
  Families families;
  MetricFamily* family = nullptr;
  const std::string page = registry.Serialize();
  for (const absl::string_view line : absl::StrSplit(page, '\n', absl::SkipEmpty())) {
    if (absl::StartsWith(line, "# TYPE ")) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      family = &families[words[2]];
      family->type = words[3];
    } else if (!absl::StartsWith(line, "#")) {
      AddSeries(line, *family);
    }
  }
  return families;
}

std::set<std::string> NamesOf(const auto& map) {
  std::set<std::string> names;
  for (const auto& [name, value] : map) names.insert(name);
  return names;
}

TEST(Documentation, ListsWhatIsCountedItsTypeAndLabelsAndNothingElse) {
  MetricRegistry registry("cpu");
  ConnectionMetrics grpc(registry, "grpc"), http(registry, "metrics");
  RouterMetrics router(registry, "m");
  router.SetSlots("decode-0", {});  // a worker has joined
  RequestMemoryMetrics memory(registry, {});
  OtlpMetrics otlp(registry);
  KeyMetrics(registry).For("alice");  // has called
  CountPortLimits(registry, {}, 0);
  ShowFixedLimit(registry, "unproved_links", 0);
  OpenDoorMetrics open(registry);
  TlsMetrics port_tls(registry, "tls"), cluster_tls(registry, "cluster_tls");
  PrefillMetrics prefill(registry);
  LinkMetrics link(registry, "p");
  DecodeMetrics decode(registry);
  WeightMetrics weights(registry);
  GatewayMetrics gateway(registry);
  Labels listed;
  const Families documented = Documented(listed), counted = Counted(registry);
  ASSERT_EQ(NamesOf(documented), NamesOf(counted));
  for (const auto& [name, family] : counted) {
    SCOPED_TRACE(name);
    const MetricFamily& page = documented.at(name);
    EXPECT_EQ(page.type, family.type);
    EXPECT_EQ(NamesOf(page.labels), NamesOf(family.labels));
    for (const auto& [label, values] : page.labels) {
      if (values.empty() || !family.labels.contains(label)) continue;
      EXPECT_EQ(values, family.labels.at(label)) << label;
    }
  }
  EXPECT_EQ(listed["stage"], counted.at("runahead_ttft_stage_seconds").labels.at("stage"));
}

}  // namespace
}  // namespace runahead
