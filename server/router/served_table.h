// The partition table that a router serves with, from a partition file.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "scheduler/partition/partition_table.h"
#include "server/router/agreement.h"

namespace runahead {

struct ServedTable {
  PartitionTable table;
  std::string dtype;  // that it was measured in; empty: not known
};

// The table in `text`, which is that of the partition file `name` (server/base/partition_file.h; docs/planning.md).
// Errors name the file, and the line. FAILED_PRECONDITION: it was made for another model than `served`.
absl::StatusOr<ServedTable> ParseServedTable(const std::string& text, const std::string& name, const ModelInfo& served);

}  // namespace runahead
