#include "client/up/held_port.h"

#include <sys/socket.h>
#include <unistd.h>

#include "server/base/address.h"
#include "server/base/socket_address.h"

namespace runahead {

// Bound and not listening: the system counts the port as taken when it chooses one, and lets others bind it by name.
HeldPort::HeldPort(const std::string& address) : address_(address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) return;
  const absl::StatusOr<SocketAddress> where = NumericSocketAddress(*parsed);
  if (!where.ok()) return;
  socket_ = socket(where->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(socket_, where->get(), where->length) != 0) return;
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  getsockname(socket_, reinterpret_cast<sockaddr*>(&bound), &length);
  address_ = FormatHostPort({parsed->host, PortOf(bound)});
}

HeldPort::~HeldPort() {
  if (socket_ >= 0) close(socket_);
}

}  // namespace runahead
