// Reading a partition table from its file.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "scheduler/partition/partition_table.h"

namespace runahead {

// A YAML file:
//   version: 1
//   model: SmolLM2-135M-Instruct     # for people
//   schedule: kvr
//   entries:
//     - {width: 2, tokens: 1024, fractions: [0.55, 0.45]}
// Errors name the file, and the line or the entry.
absl::StatusOr<PartitionTable> ReadPartitionTable(const std::string& path);

}  // namespace runahead
