// A value as the user wrote it, with the place it stands at: what both the YAML file and the command line become
// before ConfigSchema looks at it.
#pragma once

#include <string>
#include <vector>

namespace runahead {

struct ConfigValue {
  enum class Kind { kNull, kScalar, kList, kMap };

  Kind kind = Kind::kNull;
  std::string where;               // "router.yaml:12" or "--max-queue"; stands before every complaint about it
  std::string key;                 // where it is an item of a map
  std::string scalar;              // kScalar
  bool quoted = false;             // kScalar: a string even if it looks like a number
  std::vector<ConfigValue> items;  // kList, kMap: in the order written; a map's keys may repeat
};

}  // namespace runahead
