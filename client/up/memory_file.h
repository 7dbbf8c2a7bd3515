// Files of memory that a cluster's processes share and that end with them, however they end.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace runahead {

class MemoryFile {
 public:
  // Of this user alone. `name` is what /proc calls it.
  static absl::StatusOr<MemoryFile> Make(const char* name, const std::string& text);
  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&&) = delete;
  ~MemoryFile();

  // Where processes of the same user open it while this lives; who has opened it keeps it.
  const std::string& path() const { return path_; }

 private:
  explicit MemoryFile(int fd);
  int fd_ = -1;  // -1: moved from
  std::string path_;
};

}  // namespace runahead
