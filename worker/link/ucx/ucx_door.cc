#include "worker/link/ucx/ucx_door.h"

#include <dirent.h>
#include <linux/filter.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstdlib>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/base/monotonic.h"
#include "worker/link/link_address.h"

namespace runahead {
namespace {

constexpr absl::Duration kDoorPatience = absl::Milliseconds(500);
constexpr int kQuietLooks = 3;

// Of sockets that have none: ":0" or the like, which is nobody's.
std::string AddressOf(const SocketAddress& socket) {
  return FormatHostPort({NumericHost(*socket.get()), PortOf(socket.storage)});
}

// This process's sockets whose own address is that of the listener.
struct Sockets {
  std::vector<int> listening;
  std::vector<int> connected;
};

Sockets FindSockets(const std::string& address) {
  Sockets sockets;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return sockets;
  while (const dirent* entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    SocketAddress own;
    own.length = sizeof(own.storage);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&own.storage), &own.length) != 0) continue;
    if (AddressOf(own) != address) continue;
    int listens = 0;
    socklen_t length = sizeof(listens);
    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length);
    (listens != 0 ? sockets.listening : sockets.connected).push_back(fd);
  }
  closedir(folder);
  return sockets;
}

void DropWhatComes(const std::vector<int>& sockets) {
  sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &nothing};
  for (const int fd : sockets) setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

// Whether UCX has yet to accept a connection, or to read what came over one.
bool IsBusy(const Sockets& sockets) {
  for (const int fd : sockets.listening) {
    pollfd descriptor{fd, POLLIN, 0};
    if (poll(&descriptor, 1, 0) > 0) return true;
  }
  for (const int fd : sockets.connected) {
    int unread = 0;
    if (ioctl(fd, FIONREAD, &unread) == 0 && unread > 0) return true;
  }
  return false;
}

}  // namespace

void ShutDoor(const std::string& address, const std::function<void()>& progress) {
  const absl::StatusOr<SocketAddress> listener = ParseLinkAddress(address);
  if (!listener.ok()) return;
  const absl::Time end = MonotonicNow() + kDoorPatience;
  // A message may be read in two pieces, with nothing unread between them.
  for (int quiet = 0; quiet < kQuietLooks && MonotonicNow() < end;) {
    const Sockets sockets = FindSockets(AddressOf(*listener));
    DropWhatComes(sockets.listening);
    DropWhatComes(sockets.connected);
    quiet = IsBusy(sockets) ? 0 : quiet + 1;
    progress();
    absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace runahead
