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

// Writes what the GGUF file `from`, of the architectures llama, qwen2 or qwen3 and in F32, holds into the folder
// `path`: config.json, generation_config.json, and the tensors with the names and the order of rows that transformers
// has.
void WriteSyntheticFolder(const ModelFile& from, const std::string& path, const SyntheticFolder& options = {});

}  // namespace runahead
