// --budget and --repeats, of commands that measure.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace runahead {

struct MeasureFlags {
  std::optional<double> budget;  // seconds
  std::optional<int32_t> repeats;

  // Puts what was given in the place of the defaults that stand in `budget` and `repeats`. INVALID_ARGUMENT names the
  // flag and what is allowed.
  absl::Status Read(absl::Duration& budget_out, int& repeats_out) const;
};

}  // namespace runahead
