#include "server/router/worker_call.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "server/base/silence.h"
#include "server/rpc/status.h"
#include "server/task/co_status.h"
#include "server/task/wake.h"

namespace runahead {
namespace {

// What a call comes to.
class Outcome {
 public:
  void Set(grpc::Status status) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    status_ = std::move(status);
    wake_.Notify();
  }

  // False when `patience` was over first.
  Task<bool> Await(Clock& clock, Hearing& hearing, absl::Duration patience) RUNAHEAD_EXCLUDES(mu_) {
    Silence silence(clock.Now(), hearing);
    while (!status()) {
      if (silence.Look(clock.Now()) >= patience) co_return false;
      co_await wake_.Until(clock, clock.Now() + Silence::kLookPeriod);
    }
    co_return true;
  }

  Task<grpc::Status> Await() RUNAHEAD_EXCLUDES(mu_) {
    while (!status()) co_await wake_.Wait();
    co_return *status();
  }

 private:
  std::optional<grpc::Status> status() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return status_;
  }

  Mutex mu_;
  std::optional<grpc::Status> status_ RUNAHEAD_GUARDED_BY(mu_);
  Wake wake_;
};

}  // namespace

Task<absl::Status> CallWorker(Clock& clock, Hearing& hearing, absl::Duration patience, std::vector<CancelToken*> ends,
                              StartUnary start) {
  Outcome outcome;
  grpc::ClientContext context;
  bool in_time = false;
  grpc::Status status;
  {
    std::vector<std::unique_ptr<const CancelToken::Subscription>> subscriptions;
    for (CancelToken* end : ends) {
      subscriptions.emplace_back(new CancelToken::Subscription(end->OnCancel([&context] { context.TryCancel(); })));
    }
    start(&context, [&outcome](grpc::Status ended) { outcome.Set(std::move(ended)); });
    in_time = co_await outcome.Await(clock, hearing, patience);
    if (!in_time) context.TryCancel();
    status = co_await outcome.Await();
  }
  if (status.ok()) co_return absl::OkStatus();
  for (const CancelToken* end : ends) RUNAHEAD_CO_RETURN_IF_ERROR(end->status());
  if (!in_time) co_return absl::DeadlineExceededError(absl::StrCat("no answer for ", absl::FormatDuration(patience)));
  co_return FromGrpcStatus(status);
}

}  // namespace runahead
