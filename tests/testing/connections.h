// TCP connections between processes of this host, and their end by force, as a network or a firewall ends them.
#pragma once

#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace runahead::testing {

// Why connections cannot be cut here; OK where they can. It needs CAP_NET_ADMIN, and a kernel that ends sockets by
// netlink (INET_DIAG_DESTROY): tried on a connection of our own.
absl::Status CanCut();

// Cuts every connection that joins the two processes now, over 127.0.0.1 or ::1: both ends find it reset. Returns how
// many there were.
absl::StatusOr<int> CutBetween(pid_t a, pid_t b);

}  // namespace runahead::testing
