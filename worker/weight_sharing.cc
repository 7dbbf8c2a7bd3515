#include "worker/weight_sharing.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/cpu_limit.h"
#include "server/base/logging.h"
#include "server/base/memory_limit.h"
#include "server/base/version.h"

namespace runahead {
namespace {

// The only form that is the same for all uses; it depends on no instruction set.
constexpr std::string_view kSharedNumerics = "int8";

}  // namespace

absl::StatusOr<std::shared_ptr<SharedWeights>> ShareWeights(const WorkerOptions& options, const ModelFacts& model,
                                                            std::string_view numerics) {
  if (options.shared_weights.empty() || model.identity.empty()) return nullptr;
  if (numerics != kSharedNumerics || (options.decode() && options.decode_schedule == "throughput")) {
    LogInfo("model",
            "the weights are this worker's own: those are shared that are multiplied in 8 bits and not streamed");
    return nullptr;
  }
  absl::StatusOr<std::shared_ptr<SharedWeights>> shared = SharedWeights::Open({
      .path = options.shared_weights,
      .identity = absl::StrCat(model.identity, " ", std::string(numerics), " ", BuildId()),
      .bytes = model.tensor_bytes,
      .threads = UsableCores(),
      .on_wait = [] { LogInfo("model", "waits for another worker of this host, which packs the weights for both"); },
  });
  const std::string why_not = shared.ok() ? "" : std::string(shared.status().message());
  if (shared.ok() && !(*shared)->packs()) return shared;
  if (const int64_t available = AvailableMemory(); model.tensor_bytes > available) {
    return absl::ResourceExhaustedError(absl::StrCat("the model's weights take about ", model.tensor_bytes,
                                                     " bytes, and this host has ", available, " bytes of memory left",
                                                     shared.ok() ? "" : "; they are not shared: ", why_not));
  }
  if (shared.ok() && !(*shared)->damage().empty()) {
    LogWarning("model", "shared_weights: ", (*shared)->path(), " was damaged: ", (*shared)->damage(),
               "; this worker packs the weights anew");
  }
  if (shared.ok()) return shared;
  LogWarning("model", "shared_weights: the weights are this worker's own: ", why_not);
  return nullptr;
}

absl::Status CompleteSharing(SharedWeights& weights, const std::string& contents) {
  RUNAHEAD_RETURN_IF_ERROR(weights.Complete(contents));
  LogInfo("model", weights.shared_bytes() >> 20, " MiB of weights are shared with the workers of this host by ",
          weights.path(), weights.packs() ? ", packed here" : ", packed by another");
  if (weights.refused_bytes() > 0) {
    LogWarning("model", weights.refused_bytes() >> 20, " MiB of weights are this worker's own: ", weights.path(),
               " does not have them");
  }
  return absl::OkStatus();
}

}  // namespace runahead
