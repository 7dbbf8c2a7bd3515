#include "client/measure/measure_flags.h"

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

constexpr int kMaxRepeats = 1000;
constexpr double kMaxBudgetS = 7 * 24 * 3600;

}  // namespace

absl::Status MeasureFlags::Read(absl::Duration& budget_out, int& repeats_out) const {
  if (budget.has_value()) {
    if (!(*budget > 0 && *budget <= kMaxBudgetS)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--budget: ", *budget, " is out of range; allowed: above 0, at most ", kMaxBudgetS, " seconds"));
    }
    budget_out = absl::Seconds(*budget);
  }
  if (repeats.has_value()) {
    if (*repeats < 1 || *repeats > kMaxRepeats) {
      return absl::InvalidArgumentError(
          absl::StrCat("--repeats: ", *repeats, " is out of range; allowed: 1 to ", kMaxRepeats));
    }
    repeats_out = *repeats;
  }
  return absl::OkStatus();
}

}  // namespace runahead
