#include "server/base/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/base/printable.h"

namespace runahead {
namespace {

absl::Status Refuse(absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", Printable(text), "' is not an address; write host:port, such as 127.0.0.1:9000 or [::1]:9000"));
}

bool AllDigits(absl::string_view text) {
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
  }
  return !text.empty();
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return Refuse(text);
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  if (host.front() == '[') {
    if (host.size() < 3 || host.back() != ']') return Refuse(text);
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != absl::string_view::npos) {
    return Refuse(text);  // IPv6 without brackets: where the port begins would be a guess
  }
  for (const char c : host) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c)) || c == '/' || c == ',' || c == '[' || c == ']') {
      return Refuse(text);
    }
  }
  HostPort address{std::string(host), 0};
  if (!AllDigits(port) || port.size() > 5 || !absl::SimpleAtoi(port, &address.port) || address.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", Printable(text), "': port '", Printable(port), "' is not a number from 0 to 65535"));
  }
  return address;
}

std::string FormatHostPort(const HostPort& address) {
  if (address.host.find(':') != std::string::npos) return absl::StrCat("[", address.host, "]:", address.port);
  return absl::StrCat(address.host, ":", address.port);
}

bool IsLoopback(const std::string& host) {
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return host == "localhost";
}

}  // namespace runahead
