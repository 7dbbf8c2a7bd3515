// What a registry says, for tests of what is counted.
#pragma once

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "server/base/metrics.h"

namespace runahead::testing {

// "# TYPE" lines as "name type".
inline std::set<std::string> Types(const MetricRegistry& registry) {
  std::set<std::string> types;
  for (const absl::string_view line : absl::StrSplit(registry.Serialize(), '\n')) {
    if (absl::StartsWith(line, "# TYPE ")) types.emplace(line.substr(7));
  }
  return types;
}

// Of the series with these labels, as it is written; a test failure where there is none.
inline double Value(const MetricRegistry& registry, const std::string& series) {
  for (const absl::string_view line : absl::StrSplit(registry.Serialize(), '\n')) {
    double value = 0;
    if (absl::StartsWith(line, series + " ") && absl::SimpleAtod(line.substr(series.size() + 1), &value)) return value;
  }
  ADD_FAILURE() << "no series " << series;
  return -1;
}

// How many series of a metric there are.
inline int CountSeries(const MetricRegistry& registry, const std::string& name) {
  int count = 0;
  for (const absl::string_view line : absl::StrSplit(registry.Serialize(), '\n')) {
    if (absl::StartsWith(line, name + "{") || absl::StartsWith(line, name + " ")) ++count;
  }
  return count;
}

}  // namespace runahead::testing
