// A library to preload (LD_PRELOAD): each connection of the process sends at most RUNAHEAD_PACED_GBPS gigabits per
// second (10^9 bits). The kernel paces, so that it takes no time of a core.
#include <dlfcn.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>

namespace {

void Pace(int connection) {
  static const uint64_t bytes_per_second = [] {
    const char* const gbps = std::getenv("RUNAHEAD_PACED_GBPS");
    return gbps == nullptr ? uint64_t{0} : static_cast<uint64_t>(std::atof(gbps) * 1e9 / 8);
  }();
  if (bytes_per_second == 0) return;
  setsockopt(connection, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_second, sizeof(bytes_per_second));
}

}  // namespace

extern "C" int connect(int connection, const sockaddr* address, socklen_t size) {
  static const auto next = reinterpret_cast<int (*)(int, const sockaddr*, socklen_t)>(dlsym(RTLD_NEXT, "connect"));
  Pace(connection);
  return next(connection, address, size);
}

extern "C" int accept4(int listener, sockaddr* address, socklen_t* size, int flags) {
  static const auto next = reinterpret_cast<int (*)(int, sockaddr*, socklen_t*, int)>(dlsym(RTLD_NEXT, "accept4"));
  const int connection = next(listener, address, size, flags);
  if (connection >= 0) Pace(connection);
  return connection;
}
