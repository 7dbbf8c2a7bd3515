// The Llama pass as plainly as it can be said, in double, straight from the file: what the real pass is compared with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/format/model_file.h"

namespace runahead {

struct ReferenceOutput {
  std::vector<std::vector<double>> logits;  // [tokens][vocab]
  // [layer][tokens][K|V][kv_heads*head_dim], K after rotation in the rotate-half order of rows.
  std::vector<std::vector<double>> kv;
};

// Runs all `ids` as one sequence from position 0. Independent of worker/model: it knows GGUF's keys and row order
// itself.
ReferenceOutput RunReferenceLlama(const ModelFile& file, const std::vector<int32_t>& ids);

}  // namespace runahead
