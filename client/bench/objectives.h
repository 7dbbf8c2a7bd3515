// What a request must keep to be good (goodput).
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace runahead {

// Limits of one request; those that are absent are not looked at.
struct Objectives {
  std::optional<absl::Duration> ttft = std::nullopt;
  std::optional<absl::Duration> tpot = std::nullopt;
  std::optional<absl::Duration> e2e = std::nullopt;
};

// "ttft:500,tpot:50,e2e:10000": milliseconds above 0, each name once; e2el, as vLLM has it, is e2e. INVALID_ARGUMENT,
// without the flag's name.
absl::StatusOr<Objectives> ParseObjectives(absl::string_view text);

}  // namespace runahead
