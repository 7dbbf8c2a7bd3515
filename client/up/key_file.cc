#include "client/up/key_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/base/random.h"

namespace runahead {

absl::StatusOr<KeyFile> KeyFile::Make() {
  KeyFile file(memfd_create("cluster_key", MFD_CLOEXEC));
  std::string key;
  for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&key, "%016x", RandomBits64());
  if (file.fd_ < 0 || fchmod(file.fd_, 0600) != 0 ||
      write(file.fd_, key.data(), key.size()) != static_cast<ssize_t>(key.size())) {
    return absl::ErrnoToStatus(errno, "cannot make a file for the cluster's key");
  }
  return file;
}

KeyFile::KeyFile(int fd) : fd_(fd), path_(absl::StrCat("/proc/", getpid(), "/fd/", fd)) {}

KeyFile::KeyFile(KeyFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

KeyFile::~KeyFile() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace runahead
