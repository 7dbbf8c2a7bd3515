#include "server/rpc/received_bytes.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/base/logging.h"

namespace runahead {
namespace {

// As gRPC writes it; empty where the descriptor is no connection over IP.
std::string PeerOf(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return absl::StrCat("ipv4:", text.data(), ":", ntohs(v4.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text.data(), text.size());
    return absl::StrCat("ipv4:", text.data(), ":", ntohs(v6.sin6_port));
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  return absl::StrCat("ipv6:%5B", text.data(), "%5D:", ntohs(v6.sin6_port));
}

}  // namespace

int ReceivedBytes::SocketOf(const std::string& peer) {
  auto found = sockets_.find(peer);
  if (found == sockets_.end() || PeerOf(found->second) != peer) {
    Look();
    found = sockets_.find(peer);
  }
  return found == sockets_.end() ? -1 : found->second;
}

std::optional<uint64_t> ReceivedBytes::Of(const std::string& peer) {
  const int socket = SocketOf(peer);
  tcp_info info{};
  socklen_t size = sizeof(info);
  constexpr size_t kNeeded = offsetof(tcp_info, tcpi_bytes_received) + sizeof(info.tcpi_bytes_received);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || size < kNeeded) return std::nullopt;
  return info.tcpi_bytes_received;
}

void ReceivedBytes::HangUp(const std::string& peer) {
  const int socket = SocketOf(peer);
  if (socket < 0 || shutdown(socket, SHUT_RDWR) != 0) return;
  if (const auto times = hung_up_.Happened()) {
    LogWarning("grpc", "the connection from ", peer, " is ended: it goes on with calls though they are refused (",
               *times, " such connections since the last line)");
  }
}

void ReceivedBytes::Look() {
  sockets_.clear();
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return;
  while (const dirent* const entry = readdir(folder)) {
    int descriptor = 0;
    if (!absl::SimpleAtoi(entry->d_name, &descriptor)) continue;  // "." and ".."
    if (std::string peer = PeerOf(descriptor); !peer.empty()) sockets_[std::move(peer)] = descriptor;
  }
  closedir(folder);
}

}  // namespace runahead
