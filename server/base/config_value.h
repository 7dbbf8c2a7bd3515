// A value as the user wrote it, with the place it stands at: what both the YAML file and the command line become
// before ConfigSchema looks at it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace runahead {

struct ConfigValue {
  enum class Kind { kNull, kScalar, kList, kMap };

  Kind kind = Kind::kNull;
  std::string where;    // "router.yaml:12" or "--max-queue"; stands before every complaint about it
  std::string scalar;   // kScalar
  bool quoted = false;  // kScalar: a string even if it looks like a number
  std::vector<ConfigValue> list;
  std::vector<std::pair<std::string, ConfigValue>> map;  // in the order written; keys may repeat
};

}  // namespace runahead
