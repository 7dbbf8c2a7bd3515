#include "server/base/random.h"

#include <sys/random.h>

#include <cerrno>

#include "kernels/base/status_macros.h"

namespace runahead {

uint64_t RandomBits64() {
  uint64_t bits = 0;
  while (bits == 0) {
    const ssize_t got = getrandom(&bits, sizeof(bits), 0);  // reads of up to 256 bytes come whole
    if (got < 0 && errno == EINTR) continue;
    RUNAHEAD_CHECK(got == sizeof(bits));
  }
  return bits;
}

}  // namespace runahead
