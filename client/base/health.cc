#include "client/base/health.h"

#include <optional>
#include <string>
#include <utility>

#include "kernels/base/mutex.h"
#include "server/rpc/health_check.h"

namespace runahead {

absl::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, absl::Duration timeout,
                         const std::string& service) {
  Mutex mu;
  CondVar changed;
  std::optional<absl::Status> result;
  HealthCheck check;
  check.Ask(channel, timeout, service, [&](absl::Status status) {
    MutexLock lock(mu);
    result = std::move(status);
    changed.NotifyAll();
  });
  MutexLock lock(mu);
  while (!result.has_value()) changed.Wait(mu);
  return *result;
}

}  // namespace runahead
