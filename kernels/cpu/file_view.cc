#include "kernels/cpu/file_view.h"

#include <sys/mman.h>

#include <cstdint>

namespace runahead {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

FileView::FileView(const Range& range, int protection)
    : reserved_bytes_(range.bytes + 2 * kHugePageBytes),
      reserved_(mmap(nullptr, reserved_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
  if (reserved_ == MAP_FAILED) return;
  // The view lies as far from a border of huge pages as its bytes do in the file.
  const size_t into = kHugePageBytes - reinterpret_cast<uintptr_t>(reserved_) % kHugePageBytes;
  std::byte* const at = static_cast<std::byte*>(reserved_) + into + range.at % kHugePageBytes;
  if (mmap(at, range.bytes, protection, MAP_SHARED | MAP_FIXED, range.fd, static_cast<off_t>(range.at)) != MAP_FAILED) {
    data_ = at;
  }
}

FileView::~FileView() {
  if (reserved_ != MAP_FAILED) munmap(reserved_, reserved_bytes_);
}

}  // namespace runahead
