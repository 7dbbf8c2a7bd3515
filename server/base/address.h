// "host:port" as people write it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace runahead {

struct HostPort {
  std::string host;  // a name or an IP address, IPv6 without its brackets
  int port = 0;      // 0 to 65535
};

// Takes "127.0.0.1:9000", "worker-3:9000", "[::1]:9000". The error names what is missing.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// The inverse, with brackets around IPv6.
std::string FormatHostPort(const HostPort& address);

// Whether who listens at `host` can be reached from this host only: 127.0.0.0/8, ::1, localhost. Other names are not
// looked up, and count as reachable from elsewhere.
bool IsLoopback(const std::string& host);

}  // namespace runahead
