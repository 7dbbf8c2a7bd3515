#include "worker/link/link_host.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/socket_address.h"

namespace runahead {
namespace {

struct Network {
  std::string address;
  int rank = 0;  // the lowest is taken
};

std::vector<Network> NetworksUp() {
  std::vector<Network> networks;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return networks;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const bool v6 = one->ifa_addr->sa_family == AF_INET6;
    // A link-local address means nothing without the interface that it is of.
    if (v6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr)) continue;
    const std::string address = NumericHost(*one->ifa_addr);
    if (address.empty()) continue;
    networks.push_back({address, ((one->ifa_flags & IFF_LOOPBACK) != 0 ? 2 : 0) + (v6 ? 1 : 0)});
  }
  freeifaddrs(all);
  return networks;
}

std::string FirstNetwork() {
  const std::vector<Network> networks = NetworksUp();
  const auto best = std::min_element(networks.begin(), networks.end(),
                                     [](const Network& a, const Network& b) { return a.rank < b.rank; });
  return best == networks.end() ? "127.0.0.1" : best->address;
}

}  // namespace

absl::StatusOr<std::string> LinkHost(const std::string& listen_host) {
  if (listen_host == "0.0.0.0" || listen_host == "::") return FirstNetwork();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(listen_host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", listen_host, "\" is no address of this host: ", gai_strerror(error)));
  }
  std::string best;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (best.empty() || one->ai_family == AF_INET) best = NumericHost(*one->ai_addr);
    if (one->ai_family == AF_INET) break;
  }
  freeaddrinfo(found);
  return best;
}

}  // namespace runahead
