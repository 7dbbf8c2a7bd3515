#include "worker/format/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

std::string NumbersOf(const struct stat& info) {
  return absl::StrCat(info.st_dev, ":", info.st_ino, ":", info.st_size, ":", info.st_mtim.tv_sec, ".",
                      info.st_mtim.tv_nsec, ":", info.st_ctim.tv_sec, ".", info.st_ctim.tv_nsec);
}

}  // namespace

std::string FileNumbers(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 ? NumbersOf(info) : "";
}

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: a FIFO would otherwise block here for ever; it is refused below.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  absl::Cleanup close_fd = [fd] { close(fd); };

  struct stat info;
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read the size of ", path));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  if (info.st_size == 0) return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));

  const size_t size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path, " into memory"));
  return std::shared_ptr<const MappedFile>(
      new MappedFile({static_cast<const std::byte*>(data), size}, NumbersOf(info)));
}

MappedFile::~MappedFile() {
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace runahead
