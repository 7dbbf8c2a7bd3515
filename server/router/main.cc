// runahead-router: the public service in front of prefill and decode workers.
#include "kernels/base/status_macros.h"
#include "server/base/config_flags.h"
#include "server/base/descriptor_limit.h"
#include "server/base/logging.h"
#include "server/base/process.h"
#include "server/base/signals.h"
#include "server/router/router_options.h"
#include "server/router/router_process.h"

namespace runahead {
namespace {

// How soon health follows the workers. (How soon what stands in files follows them: kFollowPeriod.)
constexpr absl::Duration kHealthPeriod = absl::Milliseconds(50);

absl::Status RunRouter(const RouterOptions& options, StopSignal& stop) {
  RUNAHEAD_RETURN_IF_ERROR(DieWithParent(options.process.parent_pid));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::unique_ptr<RouterProcess> router, RouterProcess::Start(options));
  RUNAHEAD_RETURN_IF_ERROR(WriteReadyLine(options.process.ready_fd, router->address(), router->metrics_address()));
  do {
    router->UpdateHealth();
    router->UpdateEjections();
    router->UpdateTable();
    router->UpdateKeys();
    router->UpdateMemory();
    router->UpdateTls();
  } while (!stop.Wait(kHealthPeriod));
  LogInfo("main", "stopping: draining for up to ", absl::FormatDuration(options.process.drain_timeout));
  router->Drain(options.process.drain_timeout);
  return absl::OkStatus();
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  runahead::RouterOptions options;
  runahead::ConfigSchema schema;
  runahead::DeclareRouterOptions(schema, options);
  if (const auto exit_code = runahead::ParseCommandLine(
          argc, argv, "The router of Runahead: answers clients, and sends their work to prefill and decode workers.",
          schema)) {
    return *exit_code;
  }
  runahead::RaiseDescriptorLimit();
  runahead::StopSignal stop;
  runahead::InitLogging("router", options.process.level(), options.process.format());
  const absl::Status status = runahead::RunRouter(options, stop);
  if (status.ok()) return 0;
  runahead::LogError("main", status.message());
  return 1;
}
