// What a worker's device is chosen by, and its weights shared by, before they are loaded.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/format/model_file.h"

namespace runahead {

struct ModelFacts {
  bool mostly_quantised = false;  // most of its elements are of quantised types
  int64_t tensor_bytes = 0;       // of all tensors, as they are stored
  absl::Status takes_int8 = {};   // that of CheckTakesInt8
  // Of these files on this host, as it is now: with the file system's numbers, for fingerprints are not of weights.
  // Empty where one was replaced while it was opened.
  std::string identity = {};
};

struct OpenedModel {
  std::shared_ptr<const ModelFile> file;
  ModelFacts facts;
};
// Errors: those of OpenModelFile.
absl::StatusOr<OpenedModel> OpenModel(const std::string& path);

}  // namespace runahead
