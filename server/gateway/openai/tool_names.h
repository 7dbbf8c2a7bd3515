// The names of the tools that a request may have called.
#pragma once

#include <memory>
#include <string>

#include "absl/container/flat_hash_set.h"

namespace runahead {

// Shared by the request's answers; not changed. Null: there are none.
using ToolNames = std::shared_ptr<const absl::flat_hash_set<std::string>>;

}  // namespace runahead
