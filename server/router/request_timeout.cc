#include "server/router/request_timeout.h"

#include "absl/status/status.h"

namespace runahead {

absl::Time TimeoutOf(const v1::GenerateRequest& request, absl::Time arrival) {
  return request.has_timeout_s() ? arrival + absl::Seconds(request.timeout_s()) : absl::InfiniteFuture();
}

Task<> RequestTimeout::Watch() {
  while (!ended_ && clock_.Now() < at_) co_await news_.Until(clock_, at_);
  if (!ended_) cancel_.Cancel(absl::DeadlineExceededError("the deadline passed"));
}

void RequestTimeout::End() {
  ended_ = true;
  news_.Notify();
}

}  // namespace runahead
