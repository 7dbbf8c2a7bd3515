// What a child says about itself when it serves (see WriteReadyLine in server/base/process.h).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace runahead {

struct ReadyLine {
  std::string address;  // host:port of its services
  std::string metrics;  // host:port of its /metrics
};

// Takes {"address":"127.0.0.1:1234","metrics":"127.0.0.1:1235"}; other keys are ignored. INVALID_ARGUMENT quotes the
// line and says what is wrong with it.
absl::StatusOr<ReadyLine> ParseReadyLine(absl::string_view line);

}  // namespace runahead
