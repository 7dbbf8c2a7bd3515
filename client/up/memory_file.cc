#include "client/up/memory_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace runahead {

absl::StatusOr<MemoryFile> MemoryFile::Make(const char* name, const std::string& text) {
  MemoryFile file(memfd_create(name, MFD_CLOEXEC));
  if (file.fd_ < 0 || fchmod(file.fd_, 0600) != 0 ||
      write(file.fd_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make a file in memory: ", name));
  }
  return file;
}

MemoryFile::MemoryFile(int fd) : fd_(fd), path_(absl::StrCat("/proc/", getpid(), "/fd/", fd)) {}

MemoryFile::MemoryFile(MemoryFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

MemoryFile::~MemoryFile() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace runahead
