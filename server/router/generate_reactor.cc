#include "server/router/generate_reactor.h"

#include <grpc/support/time.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

// The client counts the deadline from when it sent the request, and we from when it came, in gRPC's three digits,
// rounded up: its cancel comes before the deadline has passed here, by the way of the request and up to a hundredth of
// the time.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(100);
constexpr int kDeadlineRounding = 100;

// Workers come back and queues move within about this time.
constexpr absl::Duration kRetryAfter = absl::Seconds(1);

// gRPC keeps it on the monotonic clock. Seen as a time of day it would be off for some seconds after somebody has set
// that: absl::Now() looks at it only now and then.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context, const Clock& clock) {
  const gpr_timespec deadline = gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_MONOTONIC);
  if (gpr_time_cmp(deadline, gpr_inf_future(GPR_CLOCK_MONOTONIC)) == 0) return absl::InfiniteFuture();
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(GPR_CLOCK_MONOTONIC));
  return clock.Now() + absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec);
}

}  // namespace

grpc::Status ClientStatus(const absl::Status& status) {
  const bool retry = absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
  return ToGrpcStatus(retry && !RetryAfter(status) ? WithRetryAfter(status, kRetryAfter) : status);
}

std::shared_ptr<GenerateReactor> GenerateReactor::Create(grpc::CallbackServerContext* context, DrainGate::Pass pass,
                                                         absl::Duration stall_timeout, Clock& clock,
                                                         RouterMetrics& metrics) {
  std::shared_ptr<GenerateReactor> reactor(
      new GenerateReactor(context, std::move(pass), stall_timeout, clock, metrics));
  MutexLock lock(reactor->mu_);
  reactor->itself_ = reactor;
  return reactor;
}

GenerateReactor::GenerateReactor(grpc::CallbackServerContext* context, DrainGate::Pass pass,
                                 absl::Duration stall_timeout, Clock& clock, RouterMetrics& metrics)
    : context_(context),
      stall_timeout_(stall_timeout),
      clock_(clock),
      metrics_(metrics),
      deadline_(DeadlineOf(*context, clock)),
      slack_(kDeadlineSlack + (deadline_ - clock.Now()) / kDeadlineRounding),
      pass_(std::move(pass)) {
  metrics_.CallBegan();
}

void GenerateReactor::Send(v1::GenerateResponse response) {
  bool stalled = false;
  {
    MutexLock lock(mu_);
    queue_.Push(std::move(response));
    Next();
    stalled = Stalled();
  }
  if (stalled) cancel_.Cancel(StalledStatus());
}

void GenerateReactor::End(const absl::Status& status) {
  MutexLock lock(mu_);
  end_ = ClientStatus(status);
  Next();
}

Task<absl::Status> GenerateReactor::AwaitEnd() {
  bool cut = false;
  while (!LookForEnd(cut)) co_await at_end_.Until(clock_, clock_.Now() + stall_timeout_);
  co_return cut ? StalledStatus() : absl::OkStatus();
}

bool GenerateReactor::LookForEnd(bool& cut) {
  MutexLock lock(mu_);
  if (!ended_ && !cut && Stalled()) {
    cut = true;
    context_->TryCancel();
  }
  return ended_;
}

bool GenerateReactor::Stalled() const {
  return write_began_ && clock_.Now() - *write_began_ >= stall_timeout_;
}

absl::Status GenerateReactor::StalledStatus() const {
  return absl::CancelledError(absl::StrCat("the client has taken nothing for ", absl::FormatDuration(stall_timeout_)));
}

void GenerateReactor::Next() {
  if (write_began_) return;
  if (!queue_.empty()) {
    writing_ = queue_.Pop();
    write_began_ = clock_.Now();
    StartWrite(&writing_);
  } else if (end_ && !finish_called_) {
    finish_called_ = true;
    grpc::ServerWriteReactor<v1::GenerateResponse>::Finish(*end_);
  }
}

void GenerateReactor::OnWriteDone(bool ok) {
  if (!ok) OnCancel();  // which may come after this
  MutexLock lock(mu_);
  write_began_.reset();
  Next();
}

void GenerateReactor::OnCancel() {
  if (clock_.Now() >= deadline_ - slack_) {
    cancel_.Cancel(absl::DeadlineExceededError("the deadline passed"));
  } else {
    cancel_.Cancel(absl::CancelledError("the client went away"));
  }
}

void GenerateReactor::OnDone() {
  std::shared_ptr<GenerateReactor> last;  // the end of it, after the lock is given back
  MutexLock lock(mu_);
  last = std::move(itself_);
  metrics_.CallEnded();
  pass_ = DrainGate::Pass();
  ended_ = true;
  at_end_.Notify();
}

}  // namespace runahead
