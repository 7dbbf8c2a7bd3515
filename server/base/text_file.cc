#include "server/base/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

namespace fs = std::filesystem;

class File {
 public:
  File(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~File() { Close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  bool Close() {
    const bool closed = fd_ < 0 || close(fd_) == 0;
    fd_ = -1;
    return closed;
  }

 private:
  int fd_;
};

absl::Status WriteAll(int fd, absl::string_view text, const std::string& what) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, what);
    text.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// The file itself where `path` is a link, so that not the link is replaced; and whether it may be.
absl::StatusOr<std::string> TargetOf(const std::string& path, const std::string& what) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return path;
  if (error) return absl::ErrnoToStatus(error.value(), what);
  if (status.type() != fs::file_type::regular) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": it is no regular file"));
  }
  if (access(path.c_str(), W_OK) != 0) return absl::ErrnoToStatus(errno, what);
  const fs::path target = fs::canonical(path, error);
  if (error) return absl::ErrnoToStatus(error.value(), what);
  return target.string();
}

absl::Status WriteTo(const std::string& temporary, const std::string& target, absl::string_view text,
                     const std::string& what) {
  File file(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
  if (file.fd() < 0) return absl::ErrnoToStatus(errno, what);
  struct stat old;
  if (stat(target.c_str(), &old) == 0 && fchmod(file.fd(), old.st_mode & 07777) != 0) {
    return absl::ErrnoToStatus(errno, what);
  }
  RUNAHEAD_RETURN_IF_ERROR(WriteAll(file.fd(), text, what));
  if (fsync(file.fd()) != 0 || !file.Close()) return absl::ErrnoToStatus(errno, what);
  if (rename(temporary.c_str(), target.c_str()) != 0) return absl::ErrnoToStatus(errno, what);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes) {
  const std::string what = absl::StrCat("cannot read ", path);
  const File file(path, O_RDONLY);
  if (file.fd() < 0) return absl::ErrnoToStatus(errno, what);
  std::string text;
  char buffer[16384];
  while (true) {
    const ssize_t got = read(file.fd(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, what);
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (static_cast<int64_t>(text.size()) > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": larger than ", max_bytes, " bytes; is it the right file?"));
    }
  }
}

absl::Status WriteTextFile(const std::string& path, absl::string_view text) {
  const std::string what = absl::StrCat("cannot write ", path);
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string target, TargetOf(path, what));
  const std::string temporary = absl::StrCat(target, ".tmp-", getpid());
  const absl::Status written = WriteTo(temporary, target, text, what);
  if (!written.ok()) {
    unlink(temporary.c_str());
    return written;
  }
  // The name, too, has to survive a loss of power; where a folder cannot be synchronised, nothing more can be done.
  const File folder(fs::path(target).parent_path().empty() ? "." : fs::path(target).parent_path().string(),
                    O_RDONLY | O_DIRECTORY);
  if (folder.fd() >= 0) fsync(folder.fd());
  return absl::OkStatus();
}

}  // namespace runahead
