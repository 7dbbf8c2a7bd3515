// SRV records of the name service: who offers a service, and on which port.
#pragma once

#include <set>
#include <string>

#include "absl/status/statusor.h"

namespace runahead {

// The targets of `service`'s SRV records, each "host:port"; "_rpc._tcp.prefill.example.org" is what such a name looks
// like, and a short one is sought in the domains of /etc/resolv.conf. Asks its name servers, or, where it is not empty,
// `server` (an IPv4 address with its port). Nothing is kept: every call asks. Blocks for some seconds when nobody
// answers. NOT_FOUND when there is no such name, or it has no such records; UNAVAILABLE when the servers do not answer
// or fail. Thread-safe.
absl::StatusOr<std::set<std::string>> LookUpSrv(const std::string& service, const std::string& server = {});

}  // namespace runahead
