#include "server/router/worker_call.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/silence.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

class Outcome {
 public:
  void Set(grpc::Status status) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    status_ = std::move(status);
    changed_.NotifyAll();
  }

  // False when `patience` was over first.
  bool Await(Clock& clock, absl::Duration patience) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    Silence silence(clock.Now());
    while (!status_) {
      if (silence.Look(clock.Now()) >= patience) return false;
      clock.WaitUntil(mu_, changed_, clock.Now() + Silence::kLookPeriod);
    }
    return true;
  }

  grpc::Status Await() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (!status_) changed_.Wait(mu_);
    return *status_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::optional<grpc::Status> status_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace

absl::Status CallWorker(Clock& clock, absl::Duration patience, const std::vector<CancelToken*>& ends,
                        const StartUnary& start) {
  Outcome outcome;
  grpc::ClientContext context;
  std::vector<std::unique_ptr<const CancelToken::Subscription>> subscriptions;
  for (CancelToken* end : ends) {
    subscriptions.emplace_back(new CancelToken::Subscription(end->OnCancel([&context] { context.TryCancel(); })));
  }
  start(&context, [&outcome](grpc::Status status) { outcome.Set(std::move(status)); });
  const bool in_time = outcome.Await(clock, patience);
  if (!in_time) context.TryCancel();
  const grpc::Status status = outcome.Await();
  if (status.ok()) return absl::OkStatus();
  for (const CancelToken* end : ends) RUNAHEAD_RETURN_IF_ERROR(end->status());
  if (!in_time) return absl::DeadlineExceededError(absl::StrCat("no answer for ", absl::FormatDuration(patience)));
  return FromGrpcStatus(status);
}

}  // namespace runahead
