// A file mapped into memory for reading.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace runahead {

// Who writes to a file, or puts another in its place, changes these: numbers that the file system gives it, its size
// and times. Empty where there is none.
std::string FileNumbers(const std::string& path);

// Owns the mapping and unmaps when destroyed. Whoever shortens the file while it is mapped makes reads of the lost part
// fail with SIGBUS, as with any mapping: replace a model file by renaming a new one over it.
class MappedFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT (not a regular file, empty) name `path`.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Valid as long as this object.
  absl::Span<const std::byte> bytes() const { return bytes_; }
  absl::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }
  // FileNumbers, as they were when it was opened.
  const std::string& numbers() const { return numbers_; }

 private:
  MappedFile(absl::Span<const std::byte> bytes, std::string numbers) : bytes_(bytes), numbers_(std::move(numbers)) {}

  const absl::Span<const std::byte> bytes_;
  const std::string numbers_;
};

}  // namespace runahead
