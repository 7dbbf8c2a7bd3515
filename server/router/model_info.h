// What a model file says of itself, as far as the router needs it.
#pragma once

#include "absl/status/statusor.h"
#include "server/router/agreement.h"
#include "worker/format/model_file.h"

namespace runahead {

// INVALID_ARGUMENT and NOT_FOUND name the file and the key. Names in it are fit for labels, messages and terminals.
absl::StatusOr<ModelInfo> ReadModelInfo(const ModelFile& file);

}  // namespace runahead
