// The cluster key of `runahead up`: random, in a file of memory that ends with the process, however that ends.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace runahead {

class KeyFile {
 public:
  static absl::StatusOr<KeyFile> Make();
  KeyFile(KeyFile&& other) noexcept;
  KeyFile& operator=(KeyFile&&) = delete;
  ~KeyFile();

  // Where processes of the same user read it while this lives.
  const std::string& path() const { return path_; }

 private:
  explicit KeyFile(int fd);
  int fd_ = -1;  // -1: moved from
  std::string path_;
};

}  // namespace runahead
