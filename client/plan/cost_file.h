// Cost files: the constants that say what a model costs on a machine (docs/planning.md, "What if"). Errors name file,
// line, key and what is allowed: NOT_FOUND or the like where the file cannot be read, INVALID_ARGUMENT for what is in
// it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/partition/cost_model.h"

namespace runahead {

// YAML: layers, kv_bytes_per_token, linear_s_per_token and attention_s_per_token_pair must be there, the other fields
// of CostModel may be; links as link_latency_s and link_gbps, or as a list of links. A file without
// receive_ahead_layers is of our workers (kRunaheadReceiveAhead), not of the paper's.
absl::StatusOr<CostModel> ReadCostFile(const std::string& path);

// The same from `text`; `name` stands for the file.
absl::StatusOr<CostModel> ParseCostFile(const std::string& text, const std::string& name);

// The text of a cost file that is read back as this model, numbers to 6 digits. Fields that have their defaults are
// left out. `comments` stand at its head, a line each. INVALID_ARGUMENT: it could not be read back.
absl::StatusOr<std::string> PrintCostFile(const CostModel& model, const std::vector<std::string>& comments);

}  // namespace runahead
