#include "tests/testing/connections.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead::testing {
namespace {

// An address as the kernel's tables print it and netlink takes it: words in network order. IPv4 has one.
using Address = std::array<uint32_t, 4>;

struct Socket {
  int family = AF_INET;
  Address local{}, remote{};
  uint16_t local_port = 0, remote_port = 0;
};

// Reads "0100007F" or four such words, and the port, of a column of /proc/net/tcp or tcp6.
bool ReadEnd(const std::string& column, Address& address, uint16_t& port) {
  const size_t colon = column.find(':');
  if (colon == std::string::npos) return false;
  for (size_t word = 0; 8 * word < colon; ++word) {
    address[word] = static_cast<uint32_t>(std::stoul(column.substr(8 * word, 8), nullptr, 16));
  }
  port = static_cast<uint16_t>(std::stoul(column.substr(colon + 1), nullptr, 16));
  return true;
}

// The inodes of a process' sockets.
std::set<uint64_t> SocketInodes(pid_t pid) {
  std::set<uint64_t> inodes;
  const std::string folder = absl::StrCat("/proc/", pid, "/fd");
  DIR* const files = opendir(folder.c_str());
  if (files == nullptr) return inodes;
  while (const dirent* file = readdir(files)) {
    char target[PATH_MAX] = "";
    uint64_t inode = 0;
    if (readlink(absl::StrCat(folder, "/", file->d_name).c_str(), target, sizeof target - 1) < 0) continue;
    if (sscanf(target, "socket:[%lu]", &inode) == 1) inodes.insert(inode);
  }
  closedir(files);
  return inodes;
}

std::set<uint16_t> ListeningPorts() {
  constexpr char kListening[] = "0A";
  std::set<uint16_t> ports;
  for (const char* family : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream table(family);
    std::string line;
    while (std::getline(table, line)) {
      char local[64], state[8];
      Address address{};
      uint16_t port = 0;
      if (sscanf(line.c_str(), " %*s %63s %*s %7s", local, state) != 2) continue;
      if (std::strcmp(state, kListening) == 0 && ReadEnd(local, address, port)) ports.insert(port);
    }
  }
  return ports;
}

// The established connections of a process.
std::vector<Socket> ConnectionsOf(pid_t pid) {
  constexpr char kEstablished[] = "01";
  const std::set<uint64_t> inodes = SocketInodes(pid);
  std::vector<Socket> sockets;
  for (const int family : {AF_INET, AF_INET6}) {
    std::ifstream table(absl::StrCat("/proc/", pid, "/net/", family == AF_INET ? "tcp" : "tcp6"));
    std::string line;
    std::getline(table, line);  // the heading
    while (std::getline(table, line)) {
      char local[64], remote[64], state[8];
      uint64_t inode = 0;
      Socket socket{.family = family};
      if (sscanf(line.c_str(), " %*s %63s %63s %7s %*s %*s %*s %*s %*s %lu", local, remote, state, &inode) != 4)
        continue;
      if (std::strcmp(state, kEstablished) != 0 || !inodes.contains(inode)) continue;
      if (!ReadEnd(local, socket.local, socket.local_port)) continue;
      if (!ReadEnd(remote, socket.remote, socket.remote_port)) continue;
      sockets.push_back(socket);
    }
  }
  return sockets;
}

// Asks the kernel to end a socket: the other end gets a reset.
absl::Status Destroy(const Socket& victim) {
  const int netlink = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (netlink < 0) return absl::ErrnoToStatus(errno, "a netlink socket");
  const absl::Cleanup closer = [netlink] { close(netlink); };
  struct {
    nlmsghdr header;
    inet_diag_req_v2 request;
  } ask = {};
  ask.header.nlmsg_len = sizeof ask;
  ask.header.nlmsg_type = SOCK_DESTROY;
  ask.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
  ask.request.sdiag_family = static_cast<uint8_t>(victim.family);
  ask.request.sdiag_protocol = IPPROTO_TCP;
  ask.request.idiag_states = 1 << TCP_ESTABLISHED;
  ask.request.id.idiag_sport = htons(victim.local_port);
  ask.request.id.idiag_dport = htons(victim.remote_port);
  std::memcpy(ask.request.id.idiag_src, victim.local.data(), sizeof victim.local);
  std::memcpy(ask.request.id.idiag_dst, victim.remote.data(), sizeof victim.remote);
  ask.request.id.idiag_cookie[0] = ask.request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (send(netlink, &ask, sizeof ask, 0) < 0) return absl::ErrnoToStatus(errno, "SOCK_DESTROY");
  struct {
    nlmsghdr header;
    nlmsgerr error;
    char rest[512];
  } answer = {};
  if (recv(netlink, &answer, sizeof answer, 0) < 0) return absl::ErrnoToStatus(errno, "the answer to SOCK_DESTROY");
  if (answer.header.nlmsg_type == NLMSG_ERROR && answer.error.error != 0) {
    return absl::ErrnoToStatus(-answer.error.error, "SOCK_DESTROY");
  }
  return absl::OkStatus();
}

// Two ends of one connection, whatever family each end's socket is of.
bool Joined(const Socket& a, const Socket& b) {
  return a.local_port == b.remote_port && a.remote_port == b.local_port;
}

}  // namespace

absl::Status CanCut() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const absl::Cleanup closer = [&] {
    close(listener);
    close(client);
  };
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, name, size) != 0 || listen(listener, 1) != 0 || getsockname(listener, name, &size) != 0 ||
      connect(client, name, size) != 0) {
    return absl::ErrnoToStatus(errno, "a connection of our own");
  }
  sockaddr_in local = {};
  if (getsockname(client, reinterpret_cast<sockaddr*>(&local), &size) != 0)
    return absl::ErrnoToStatus(errno, "its name");
  Socket end;
  end.local[0] = end.remote[0] = htonl(INADDR_LOOPBACK);
  end.local_port = ntohs(local.sin_port);
  end.remote_port = ntohs(address.sin_port);
  return Destroy(end);
}

absl::StatusOr<int> CutBetween(pid_t a, pid_t b) {
  const std::vector<Socket> others = ConnectionsOf(b);
  // The end that connected: for one that is gone meanwhile the kernel takes who listens at its port.
  const std::set<uint16_t> listening = ListeningPorts();
  int cut = 0;
  for (const Socket& socket : ConnectionsOf(a)) {
    for (const Socket& other : others) {
      if (!Joined(socket, other)) continue;
      const absl::Status destroyed = Destroy(listening.contains(socket.local_port) ? other : socket);
      if (absl::IsNotFound(destroyed)) continue;  // ended by itself meanwhile
      RUNAHEAD_RETURN_IF_ERROR(destroyed);
      ++cut;
    }
  }
  return cut;
}

}  // namespace runahead::testing
