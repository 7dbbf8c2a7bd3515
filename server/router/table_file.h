// Reading a partition table from its file.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "scheduler/partition/partition_table.h"
#include "server/router/agreement.h"

namespace runahead {

// A YAML file:
//   version: 1
//   model: SmolLM2-135M-Instruct.Q4_1     # that was measured; a table that names none is taken for any
//   schedule: kvr
//   entries:
//     - {width: 2, tokens: 1024, fractions: [0.55, 0.45]}
// Errors name the file, and the line or the entry. FAILED_PRECONDITION: it was made for another model than `served`.
absl::StatusOr<PartitionTable> ReadPartitionTable(const std::string& path, const ModelInfo& served);

}  // namespace runahead
