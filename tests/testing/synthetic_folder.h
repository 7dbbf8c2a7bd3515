// Hugging Face folders with the weights of synthetic GGUF files, so that both can be held against each other.
#pragma once

#include <string>

#include "kernels/base/weight_type.h"
#include "worker/format/model_file.h"

namespace runahead {

struct SyntheticFolder {
  WeightType type = WeightType::kF32;  // of all tensors: F32, F16 or BF16
  int shards = 1;
  int spaces = 0;  // FolderBuilder::WriteTensors
};

// Writes what the synthetic GGUF file `from`, all of it in F32, holds into the folder `path`: config.json,
// generation_config.json, and the tensors with the names, the order of rows and, for Gemma's norms, the numbers that
// transformers has. `from` has no tensor rope_freqs.weight, which folders have as numbers.
void WriteSyntheticFolder(const ModelFile& from, const std::string& path, const SyntheticFolder& options = {});

}  // namespace runahead
