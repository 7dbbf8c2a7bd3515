// A library to preload (LD_PRELOAD): a network that flips bits of what links receive. The file named by
// RUNAHEAD_FLIPPED_BITS holds three numbers, which all processes share: how many reads are still to be hit, which ones
// (the bytes of frames, 0; all but bytes, which is prefixes and headers, 1; the bytes of slices, 2), and how many were
// hit. Links receive by readv, and nothing else of ours does. Frames come to prefill workers, slices to decode workers.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace {

struct Plan {
  std::atomic<int64_t> left, where, hit;
};

// Null where there is no file.
Plan* ThePlan() {
  static Plan* const plan = []() -> Plan* {
    const char* const path = std::getenv("RUNAHEAD_FLIPPED_BITS");
    const int fd = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return nullptr;
    void* const page = mmap(nullptr, sizeof(Plan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return page == MAP_FAILED ? nullptr : static_cast<Plan*>(page);
  }();
  return plan;
}

// Whether this process was told to decode only.
bool Decodes() {
  static const bool decodes = [] {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    const std::string arguments((std::istreambuf_iterator<char>(file)), {});
    return arguments.find("--role=decode") != std::string::npos;
  }();
  return decodes;
}

// The place of a large message's bytes; a connection's own buffer is smaller.
constexpr size_t kLargePlace = 16384;

}  // namespace

extern "C" ssize_t readv(int fd, const iovec* pieces, int count) {
  static const auto next = reinterpret_cast<ssize_t (*)(int, const iovec*, int)>(dlsym(RTLD_NEXT, "readv"));
  const ssize_t got = next(fd, pieces, count);
  Plan* const plan = ThePlan();
  if (got <= 0 || plan == nullptr) return got;
  const int64_t where = pieces[0].iov_len < kLargePlace ? 1 : Decodes() ? 2 : 0;
  if (where != plan->where || plan->left.fetch_sub(1) <= 0) return got;
  const int64_t hit = plan->hit++;
  const size_t in_first = static_cast<size_t>(got) < pieces[0].iov_len ? static_cast<size_t>(got) : pieces[0].iov_len;
  // Another byte and another bit each time.
  static_cast<unsigned char*>(pieces[0].iov_base)[static_cast<size_t>(hit * 7919 + 13) % in_first] ^= 1u << (hit % 8);
  return got;
}
