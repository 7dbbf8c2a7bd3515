// runahead-worker: one prefill or decode worker (or both in one process).
#include <cstdlib>
#include <string>

#include "server/base/address.h"
#include "server/base/config_flags.h"
#include "server/base/descriptor_limit.h"
#include "server/base/logging.h"
#include "server/base/process.h"
#include "server/base/signals.h"
#include "worker/link/ucx/ucx_environment.h"
#include "worker/options.h"
#include "worker/worker_process.h"

int main(int argc, char** argv) {
  runahead::WorkerOptions options;
  runahead::ConfigSchema schema;
  runahead::DeclareWorkerOptions(schema, options);
  if (const auto exit_code = runahead::ParseCommandLine(
          argc, argv,
          "A worker of Runahead: runs its part of prefills, or decodes. Started by `runahead up` or a deployment.",
          schema)) {
    return *exit_code;
  }
  if (options.name.empty()) options.name = options.role;
  // A worker that serves loopback only must not be reachable over its links from elsewhere either.
  const auto listen = runahead::ParseHostPort(options.process.listen);
  if (listen.ok() && runahead::IsLoopback(listen->host)) setenv("UCX_NET_DEVICES", "lo", /*overwrite=*/0);
  runahead::EnsureUcxEnvironment(argv);
  runahead::RaiseDescriptorLimit();
  runahead::StopSignal stop;
  runahead::InitLogging(options.name, options.process.level(), options.process.format());
  if (options.process.parent_pid > 0) {
    if (const absl::Status alive = runahead::DieWithParent(options.process.parent_pid); !alive.ok()) {
      runahead::LogError("main", alive.message());
      return 1;
    }
  }

  stop.EndAtOnce(true);  // loading a large model takes long, and there is nothing to drain yet
  auto worker = runahead::WorkerProcess::Start(options);
  if (!worker.ok()) {
    runahead::LogError("main", worker.status().message());
    return 1;
  }
  stop.EndAtOnce(false);
  const absl::Status ready =
      runahead::WriteReadyLine(options.process.ready_fd, (*worker)->address(), (*worker)->metrics_address());
  if (!ready.ok()) {
    runahead::LogError("main", ready.message());
    return 1;
  }
  stop.Wait();
  runahead::LogInfo("main", "stopping: draining for up to ", absl::FormatDuration(options.process.drain_timeout));
  (*worker)->Drain(options.process.drain_timeout);
  return 0;
}
