// What cost files and fit files both hold, as it stands in them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/partition/cost_model.h"
#include "server/base/config.h"

namespace runahead {

// Beyond any machine, and small enough that no product of them overflows.
inline constexpr double kMaxCostSeconds = 1e6;
inline constexpr double kMinLinkGbps = 1e-3;
inline constexpr double kMaxLinkGbps = 1e6;
inline constexpr int64_t kMaxPlanTokens = int64_t{1} << 30;  // as SimulateChain

inline double BytesPerSecond(double gbps) {
  return gbps * 1e9 / 8;
}

struct LinkKeys {
  double latency_s = 0;
  double gbps = 0;  // 0: not given, no limit
};

struct BusKeys {
  std::vector<int64_t> links;
  double gbps = 0;
};

struct ModelKeys {
  CostModel model;        // its receive_ahead_layers is our workers', unless the file says the paper's
  double latency_s = -1;  // negative: not given
  double gbps = 0;        // 0: not given
  std::vector<LinkKeys> links;
  std::vector<BusKeys> buses;
};

// `required`: whether layers and kv_bytes_per_token must be there.
void DeclareModelKeys(ConfigSchema& schema, ModelKeys& keys, bool required);

// The model with its links and buses. INVALID_ARGUMENT: links in both forms; names `path`.
absl::StatusOr<CostModel> ModelOf(const std::string& path, const ModelKeys& keys);

}  // namespace runahead
