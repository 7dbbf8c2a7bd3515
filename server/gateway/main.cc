// runahead-gateway: the OpenAI API over HTTP, in front of a router.
#include "kernels/base/status_macros.h"
#include "server/base/config_flags.h"
#include "server/base/descriptor_limit.h"
#include "server/base/logging.h"
#include "server/base/process.h"
#include "server/base/signals.h"
#include "server/gateway/gateway_options.h"
#include "server/gateway/gateway_process.h"

namespace runahead {
namespace {

absl::Status RunGateway(const GatewayOptions& options, StopSignal& stop) {
  RUNAHEAD_RETURN_IF_ERROR(DieWithParent(options.parent_pid));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::unique_ptr<GatewayProcess> gateway, GatewayProcess::Start(options));
  RUNAHEAD_RETURN_IF_ERROR(WriteReadyLine(options.ready_fd, gateway->address(), gateway->metrics_address()));
  stop.Wait();
  LogInfo("main", "stopping: draining for up to ", absl::FormatDuration(options.drain_timeout));
  gateway->Drain(options.drain_timeout);
  return absl::OkStatus();
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  runahead::GatewayOptions options;
  runahead::ConfigSchema schema;
  runahead::DeclareGatewayOptions(schema, options);
  if (const auto exit_code = runahead::ParseCommandLine(
          argc, argv, "The gateway of Runahead: speaks the OpenAI API over HTTP, in front of a router.", schema)) {
    return *exit_code;
  }
  runahead::RaiseDescriptorLimit();
  runahead::StopSignal stop;
  runahead::InitLogging("gateway", options.level(), options.format());
  const absl::Status status = runahead::RunGateway(options, stop);
  if (status.ok()) return 0;
  runahead::LogError("main", status.message());
  return 1;
}
