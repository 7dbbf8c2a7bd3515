// Whether a process serves, asked at its metrics port.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace runahead {

// GET /readyz of `metrics` (host:port): OK, or UNAVAILABLE and what it says instead, or that it says nothing within
// `timeout`. Needs no certificate, whatever the process's other port asks for. Blocks.
absl::Status AskReady(const std::string& metrics, absl::Duration timeout);

}  // namespace runahead
