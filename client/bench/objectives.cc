#include "client/bench/objectives.h"

#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/base/printable.h"

namespace runahead {
namespace {

std::optional<absl::Duration>* LimitNamed(absl::string_view name, Objectives& objectives) {
  if (name == "ttft") return &objectives.ttft;
  if (name == "tpot") return &objectives.tpot;
  if (name == "e2e" || name == "e2el") return &objectives.e2e;
  return nullptr;
}

}  // namespace

absl::StatusOr<Objectives> ParseObjectives(absl::string_view text) {
  Objectives objectives;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(item, absl::MaxSplits(':', 1));
    std::optional<absl::Duration>* const limit = LimitNamed(parts.first, objectives);
    double ms = 0;
    if (limit == nullptr || !absl::SimpleAtod(parts.second, &ms) || !std::isfinite(ms) || !(ms > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", Printable(item),
                       "' is no objective; write ttft, tpot or e2e with milliseconds, as in ttft:500,tpot:50"));
    }
    if (limit->has_value()) return absl::InvalidArgumentError(absl::StrCat("'", parts.first, "' is given twice"));
    *limit = absl::Milliseconds(ms);
  }
  return objectives;
}

}  // namespace runahead
