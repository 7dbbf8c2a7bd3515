// runahead-worker: one prefill or decode worker (or both in one process).
#include <cstdlib>
#include <string>

#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/config_flags.h"
#include "server/base/descriptor_limit.h"
#include "server/base/logging.h"
#include "server/base/memory_return.h"
#include "server/base/process.h"
#include "server/base/signals.h"
#include "worker/options.h"
#include "worker/worker_process.h"

namespace {

// How often it is looked whether certificates have changed, shared weights are damaged, and freed memory is to be given
// back.
constexpr absl::Duration kLookPeriod = absl::Seconds(1);

}  // namespace

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
  // CUDA reads it when the plugin is loaded. A GPU's most: its streams that wait for the host must not share a hardware
  // queue with those that bring what it waits for.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  runahead::RaiseDescriptorLimit();
  runahead::MemoryReturn memory;
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
  while (!stop.Wait(kLookPeriod)) {
    memory.Poll(runahead::RealClock().Now());
    (*worker)->UpdateTls();
    // What it says is wrong, so it ends at once. Whoever supervises it starts it anew, with weights that are packed
    // anew.
    if (const absl::Status weights = (*worker)->CheckWeights(); absl::IsDataLoss(weights))
      runahead::EndProcess(weights);
  }
  runahead::LogInfo("main", "stopping: draining for up to ", absl::FormatDuration(options.process.drain_timeout));
  (*worker)->Drain(options.process.drain_timeout);
  return 0;
}
