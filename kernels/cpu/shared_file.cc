#include "kernels/cpu/shared_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// 0, or an errno.
int SetLock(int fd, short type, int command) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;  // from 0, length 0: the whole file, whatever it grows to
  int result;
  do {
    result = fcntl(fd, command, &lock);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

bool TryLock(int fd, short type) {
  return SetLock(fd, type, F_OFD_SETLK) == 0;
}

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Removes files that nobody has locked: those of processes that were killed, too.
void RemoveUnused(const std::string& folder, const std::string& prefix, const std::string& but) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!absl::StartsWith(name, prefix) || name == but) continue;
    const std::string path = at->path().string();
    const int fd = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) continue;
    struct stat locked, there;
    if (fstat(fd, &locked) == 0 && S_ISREG(locked.st_mode) && locked.st_uid == geteuid() && TryLock(fd, F_WRLCK) &&
        lstat(path.c_str(), &there) == 0 && SameFile(locked, there)) {
      unlink(path.c_str());
    }
    close(fd);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedFile>> SharedFile::Open(const std::string& place, const std::string& prefix,
                                                             const std::string& name) {
  struct stat info;
  if (stat(place.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", place));
  const bool in_folder = S_ISDIR(info.st_mode);
  if (in_folder) RemoveUnused(place, prefix, name);
  const std::string path = in_folder ? absl::StrCat(place, "/", name) : place;
  // O_NONBLOCK: a FIFO would otherwise block here for ever; it is refused below.
  const int flags = O_RDWR | O_CLOEXEC | O_NONBLOCK | (in_folder ? O_CREAT | O_NOFOLLOW : 0);
  const int fd = open(path.c_str(), flags, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  std::unique_ptr<SharedFile> file(new SharedFile(path, fd, in_folder ? place : "", prefix));
  RUNAHEAD_RETURN_IF_ERROR(file->CheckOwner());
  return file;
}

SharedFile::~SharedFile() {
  close(fd_);
  if (!folder_.empty()) RemoveUnused(folder_, prefix_, "");
}

absl::Status SharedFile::CheckOwner() const {
  struct stat info;
  if (fstat(fd_, &info) != 0) return absl::ErrnoToStatus(errno, path_);
  if (!S_ISREG(info.st_mode)) return absl::PermissionDeniedError(absl::StrCat(path_, " is not a regular file"));
  if (info.st_uid == geteuid() && (info.st_mode & 077) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(path_, " belongs to user ", info.st_uid, ", or others may open it: it is not used"));
}

bool SharedFile::IsInPlace() const {
  struct stat opened, there;
  return fstat(fd_, &opened) == 0 && stat(path_.c_str(), &there) == 0 && SameFile(opened, there);
}

absl::StatusOr<SharedFile::Lock> SharedFile::Take(const std::function<void()>& on_wait) {
  Lock lock = Lock::kWrite;
  if (!TryLock(fd_, F_WRLCK)) {
    lock = Lock::kRead;
    if (!TryLock(fd_, F_RDLCK)) {
      on_wait();
      if (const int error = SetLock(fd_, F_RDLCK, F_OFD_SETLKW); error != 0) {
        return absl::ErrnoToStatus(error, absl::StrCat("cannot lock ", path_));
      }
    }
  }
  return IsInPlace() ? lock : Lock::kRemoved;
}

absl::Status SharedFile::Share() {
  const int error = SetLock(fd_, F_RDLCK, F_OFD_SETLK);
  return error == 0 ? absl::OkStatus() : absl::ErrnoToStatus(error, absl::StrCat("cannot lock ", path_));
}

absl::StatusOr<int64_t> SharedFile::Room() const {
  struct statvfs system;
  if (fstatvfs(fd_, &system) != 0) return absl::ErrnoToStatus(errno, path_);
  if (system.f_blocks == 0) return kNoLimit;  // as the kernel's own, where files without a name are
  return static_cast<int64_t>(system.f_bavail) * static_cast<int64_t>(system.f_frsize);
}

absl::Status SharedFile::Clear() {
  if (ftruncate(fd_, 0) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot clear ", path_));
  size_ = 0;
  return absl::OkStatus();
}

absl::Status SharedFile::Reserve(size_t at, size_t bytes) {
  RUNAHEAD_ASSIGN_OR_RETURN(const int64_t room, Room());
  int error = 0;
  if (room == kNoLimit) {
    // Pages come when they are written: huge ones where the mapping asks for them.
    if (at + bytes > size_ && ftruncate(fd_, static_cast<off_t>(at + bytes)) != 0) error = errno;
  } else {
    do {
      error = posix_fallocate(fd_, static_cast<off_t>(at), static_cast<off_t>(bytes));
    } while (error == EINTR);
  }
  if (error == ENOSPC || error == ENOMEM || error == EFBIG) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path_, " has no room for ", bytes, " more bytes: ", room, " are free"));
  }
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot make room in ", path_));
  size_ = std::max(size_, at + bytes);
  return absl::OkStatus();
}

absl::Status SharedFile::Write(size_t at, const void* from, size_t bytes) {
  const char* next = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t written = pwrite(fd_, next, bytes, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
    next += written;
    at += written;
    bytes -= written;
  }
  return absl::OkStatus();
}

}  // namespace runahead
