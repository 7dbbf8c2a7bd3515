#include "server/base/listen_error.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

// Empty where nothing is wrong.
std::string WhyNotBound(const addrinfo& address) {
  const int fd = socket(address.ai_family, address.ai_socktype, address.ai_protocol);
  if (fd < 0) return std::strerror(errno);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool bound = bind(fd, address.ai_addr, address.ai_addrlen) == 0 && listen(fd, 1) == 0;
  const std::string why = bound ? "" : std::strerror(errno);
  close(fd);
  return why;
}

std::string WhyNot(const HostPort& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) return gai_strerror(error);
  std::string why;
  for (const addrinfo* each = found; each != nullptr && why.empty(); each = each->ai_next) why = WhyNotBound(*each);
  freeaddrinfo(found);
  return why.empty() ? "somebody else was there a moment ago" : why;
}

}  // namespace

absl::Status ListenError(absl::string_view option, const HostPort& address) {
  return ListenError(option, address, WhyNot(address));
}

absl::Status ListenError(absl::string_view option, const HostPort& address, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat(option, ": cannot listen on ", FormatHostPort(address), ": ", why,
                                             "; give a free port (0 takes any) of an address of this machine"));
}

}  // namespace runahead
