// docs/metrics.md against what the processes count.
#include <fstream>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "server/router/router_metrics.h"
#include "tests/testing/metric_values.h"
#include "worker/metrics/decode_metrics.h"
#include "worker/metrics/link_metrics.h"
#include "worker/metrics/prefill_metrics.h"

namespace runahead {
namespace {

using ::runahead::testing::Types;

// The first cell of every row of docs/metrics.md that names a metric.
std::set<std::string> DocumentedNames() {
  std::ifstream file("docs/metrics.md");
  std::set<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "| `runahead_") || absl::StartsWith(line, "| `process_")) {
      names.insert(line.substr(3, line.find('`', 3) - 3));
    }
  }
  return names;
}

TEST(Documentation, ListsWhatIsCountedAndNothingElse) {
  MetricRegistry registry("cpu");
  RouterMetrics router(registry, "m");
  PrefillMetrics prefill(registry);
  LinkMetrics link(registry, "p");
  DecodeMetrics decode(registry);
  std::set<std::string> counted;
  for (const std::string& type : Types(registry)) counted.insert(type.substr(0, type.find(' ')));
  EXPECT_EQ(DocumentedNames(), counted);
}

}  // namespace
}  // namespace runahead
