// Opens models, whatever they are stored in.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/format/model_file.h"

namespace runahead {

// A GGUF file (OpenGguf), or a Hugging Face folder (OpenFolder). A file within such a folder is refused with a hint.
absl::StatusOr<std::shared_ptr<const ModelFile>> OpenModelFile(const std::string& path);

}  // namespace runahead
