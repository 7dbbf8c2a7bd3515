// A file in memory that one process writes and others of the same user then read: who has it locked, and when it goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace runahead {

// Locks are those of the open file: they end with the process, however that ends. Used by one thread at a time.
class SharedFile {
 public:
  // Opens the file `place`, or where that is a folder the file `name` in it, which is made where there is none. Files
  // in the folder whose names begin with `prefix`, as `name` does, and which nobody has locked are removed, but this
  // one. PERMISSION_DENIED for a file of another user, or one that others may open; errors name the path.
  static absl::StatusOr<std::unique_ptr<SharedFile>> Open(const std::string& place, const std::string& prefix,
                                                          const std::string& name);
  // Removes such files again, and now this one, too. Mappings stay what they are.
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  const std::string& path() const { return path_; }
  int fd() const { return fd_; }

  enum class Lock {
    kWrite,    // nobody else has a lock
    kRead,     // others may have it, too
    kRemoved,  // whoever had it last removed the file: open it anew
  };
  // Locked for writing where nobody has a lock, else for reading: then it waits, after `on_wait`, while another writes.
  absl::StatusOr<Lock> Take(const std::function<void()>& on_wait);
  // From writing to reading, at once: nobody else gets to write in between.
  absl::Status Share();

  // While it is locked for writing.
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  absl::StatusOr<int64_t> Room() const;  // bytes that its file system has left
  absl::Status Clear();
  // Has [at, at + bytes) be memory that may be written: without it a full file system would end the process that
  // writes. RESOURCE_EXHAUSTED where there is no room.
  absl::Status Reserve(size_t at, size_t bytes);
  absl::Status Write(size_t at, const void* from, size_t bytes);

 private:
  // `folder` is empty where it is in none of ours.
  SharedFile(std::string path, int fd, std::string folder, std::string prefix)
      : path_(std::move(path)), fd_(fd), folder_(std::move(folder)), prefix_(std::move(prefix)) {}
  absl::Status CheckOwner() const;
  bool IsInPlace() const;

  const std::string path_;
  const int fd_;
  const std::string folder_;
  const std::string prefix_;
  size_t size_ = 0;  // while it is locked for writing
};

}  // namespace runahead
