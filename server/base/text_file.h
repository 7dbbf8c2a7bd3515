// Whole small files: read at once, written so that a reader sees the old one or the new one, never a part.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace runahead {

// Errors name the file: NOT_FOUND, PERMISSION_DENIED and the like, INVALID_ARGUMENT when it is larger than `max_bytes`.
// Blocks where the file does: a pipe is read to its end.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes);

// Writes beside `path`, to the disk, and only then takes its name (that of its target where it is a link; its mode is
// kept). Killed at any moment, even by a loss of power, it leaves the old file or the new one, and at worst a
// `path`.tmp-PID beside it. One writer a process and path at a time. Errors name the file and leave it as it was;
// FAILED_PRECONDITION: it is no regular file, PERMISSION_DENIED: it or its folder may not be written.
absl::Status WriteTextFile(const std::string& path, absl::string_view text);

}  // namespace runahead
