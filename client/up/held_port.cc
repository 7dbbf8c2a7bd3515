#include "client/up/held_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

#include "server/base/address.h"

namespace runahead {

// Bound and not listening: the system counts the port as taken when it chooses one, and lets others bind it by name.
HeldPort::HeldPort(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  sockaddr_in where{};
  if (!parsed.ok() || inet_pton(AF_INET, parsed->host.c_str(), &where.sin_addr) != 1) return;
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(parsed->port));
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  (void)bind(socket_, reinterpret_cast<const sockaddr*>(&where), sizeof where);
}

HeldPort::~HeldPort() {
  if (socket_ >= 0) close(socket_);
}

}  // namespace runahead
