// Reader of GGUF containers, versions 2 and 3.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/format/model_file.h"

namespace runahead {

// Maps the file, and those beside it where the model is in several (WithOtherFiles). A tensor of a type that is not
// read makes opening fail, naming tensor and type.
absl::StatusOr<std::shared_ptr<const ModelFile>> OpenGguf(const std::string& path);

// The same of one file alone, whichever part of a model it is.
absl::StatusOr<std::shared_ptr<const ModelFile>> OpenGgufFile(const std::string& path);

// The same for a file that is in memory already; `owner` keeps `bytes` alive, `name` stands for the path in errors.
absl::StatusOr<std::shared_ptr<const ModelFile>> ParseGguf(std::string name, absl::Span<const std::byte> bytes,
                                                           std::shared_ptr<const void> owner);

}  // namespace runahead
