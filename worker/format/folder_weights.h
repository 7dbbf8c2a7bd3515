// The safetensors files of a Hugging Face folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/format/mapped_file.h"
#include "worker/format/safetensors.h"

namespace runahead {

struct FolderShard {
  std::string path;
  std::shared_ptr<const MappedFile> mapped;
  Safetensors tensors;
  // Where the index says otherwise, and of the first shard, which files are not read: for people, one sentence each.
  std::vector<std::string> remarks = {};
};

// A file of the folder that may be missing: null then.
absl::StatusOr<std::shared_ptr<const MappedFile>> OpenIfThere(const std::string& path);

// Those that hold the weights, each opened and its header checked: model.safetensors, those of the index, or without
// one model-00001-of-00001.safetensors. The index names files of the folder itself only; of tensors that lie elsewhere
// than it says, remarks tell.
absl::StatusOr<std::vector<FolderShard>> OpenFolderWeights(const std::string& folder);

}  // namespace runahead
