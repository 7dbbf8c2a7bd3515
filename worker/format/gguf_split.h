// A GGUF model in several files: NAME-00001-of-00005.gguf and so on, as llama.cpp and gguf's writer split them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/format/model_file.h"

namespace runahead {

// `path` without "-00001-of-00005.gguf", or without ".gguf"; else as it is.
std::string WithoutGgufEnding(absl::string_view path);

// `first` itself where it is a model in one file; else the model of all the files that lie beside it. INVALID_ARGUMENT
// and NOT_FOUND name the file: another one than the first is opened, one is missing, or is of another model, or they do
// not hold what the first one says.
absl::StatusOr<std::shared_ptr<const ModelFile>> WithOtherFiles(std::shared_ptr<const ModelFile> first);

}  // namespace runahead
