#include "server/base/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace runahead {

absl::StatusOr<SocketAddress> NumericSocketAddress(const HostPort& address) {
  SocketAddress socket;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&socket.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&socket.storage);
  if (inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(address.port));
    socket.length = sizeof(*v4);
  } else if (inet_pton(AF_INET6, address.host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(address.port));
    socket.length = sizeof(*v6);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("\"", absl::CHexEscape(address.host), "\" is no numeric address"));
  }
  return socket;
}

std::string NumericHost(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes = nullptr;
  if (address.sa_family == AF_INET) bytes = &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  if (address.sa_family == AF_INET6) bytes = &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (bytes == nullptr || inet_ntop(address.sa_family, bytes, text, sizeof(text)) == nullptr) return "";
  return text;
}

std::string PeerHost(const SocketAddress& peer) {
  return std::string(absl::StripPrefix(NumericHost(*peer.get()), "::ffff:"));
}

int PortOf(const sockaddr_storage& storage) {
  return ntohs(storage.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in*>(&storage)->sin_port
                                            : reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
}

}  // namespace runahead
