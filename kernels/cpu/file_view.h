// A part of a file in memory.
#pragma once

#include <cstddef>

namespace runahead {

// Mapped from here to its end, for all who map the file. A huge page of the file is one in memory, too.
class FileView {
 public:
  struct Range {
    int fd;         // read while it is mapped only
    size_t at = 0;  // at a page's begin
    size_t bytes;
  };
  // `protection` as mmap's.
  FileView(const Range& range, int protection);
  ~FileView();
  FileView(const FileView&) = delete;
  FileView& operator=(const FileView&) = delete;

  // Null where the system has no more addresses or mappings.
  std::byte* data() const { return data_; }

 private:
  const size_t reserved_bytes_;  // of addresses, of which data() is a part
  void* const reserved_;
  std::byte* data_ = nullptr;
};

}  // namespace runahead
