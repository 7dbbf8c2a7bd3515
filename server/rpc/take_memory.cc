#include "server/rpc/take_memory.h"

#include "absl/strings/str_cat.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

// Requests come and go within about this time.
constexpr absl::Duration kTryAgainAfter = absl::Seconds(1);

}  // namespace

absl::Status TakeMemory(ByteBudget::Lease& lease, int64_t bytes) {
  if (lease.Resize(bytes)) return absl::OkStatus();
  const ByteBudget& budget = *lease.budget();
  if (bytes > budget.bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("the request takes ", bytes,
                                                   " bytes once it is parsed; all together may take ", budget.bytes(),
                                                   " (option request_memory)"));
  }
  return WithRetryAfter(absl::ResourceExhaustedError(absl::StrCat(
                            "the request takes ", bytes, " bytes, and the others that are here ", budget.taken(),
                            " of ", budget.bytes(), " (option request_memory); try again")),
                        kTryAgainAfter);
}

}  // namespace runahead
