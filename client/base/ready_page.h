// Whether a process serves, asked by HTTP.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace runahead {

// Paths that answer it.
inline constexpr char kReadyOfMetrics[] = "/readyz";   // of a metrics port
inline constexpr char kHealthOfGateway[] = "/health";  // of a gateway

// GET `path` of `address` (host:port): OK, or UNAVAILABLE and what it says instead, or that it says nothing within
// `timeout`. Needs no certificate, whatever the process's other port asks for. Blocks.
absl::Status AskReady(const std::string& address, const char* path, absl::Duration timeout);

}  // namespace runahead
