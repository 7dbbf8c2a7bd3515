// Files that a long command writes at its end.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace runahead {

// Minutes of work must not end at a file that cannot be written, nor in place of another one that somebody wants:
// INVALID_ARGUMENT, naming `flag`, where `path` cannot become a regular file. A file may stand there already if
// `instead` is empty; else this says what to do.
absl::Status CheckOutputFile(const std::string& flag, const std::string& path, const std::string& instead);

}  // namespace runahead
