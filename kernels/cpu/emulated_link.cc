#include "kernels/cpu/emulated_link.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

absl::Status CheckRate(double gbps) {
  if (gbps > 0 && std::isfinite(gbps)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("an emulated link of ", gbps, " gbps: give gigabits per second, above 0"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<EmulatedLink>> EmulatedLink::Create(const Options& options) {
  RUNAHEAD_RETURN_IF_ERROR(CheckRate(options.gbps));
  if (options.latency < absl::ZeroDuration() || options.latency == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an emulated link with a latency of ", absl::FormatDuration(options.latency), ": give 0 or more"));
  }
  return std::shared_ptr<EmulatedLink>(new EmulatedLink(options));
}

EmulatedLink::EmulatedLink(const Options& options)
    : to_device_(options.gbps, options.latency, options.clock),
      to_host_(options.gbps, options.latency, options.clock) {}

absl::Status EmulatedLink::SetRate(double gbps) {
  RUNAHEAD_RETURN_IF_ERROR(CheckRate(gbps));
  to_device_.SetRate(gbps);
  to_host_.SetRate(gbps);
  return absl::OkStatus();
}

}  // namespace runahead
