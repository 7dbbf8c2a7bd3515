#include "worker/format/open_model.h"

#include <sys/stat.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/format/gguf.h"
#include "worker/format/model_folder.h"

namespace runahead {

absl::StatusOr<std::shared_ptr<const ModelFile>> OpenModelFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return OpenFolder(path);
  if (absl::EndsWith(path, ".json") || absl::EndsWith(path, ".safetensors")) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is one file of a model: give the folder that it is in"));
  }
  return OpenGguf(path);
}

}  // namespace runahead
