// What a router counts of its clients' API keys, by their names. Names and labels: docs/metrics.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "server/base/metrics.h"

namespace runahead {

// What a key was refused for. kRequests, kTokens: more came a minute than may. kConcurrent: as many run as may.
// kMaxTokens, kPriority, kTenant: what a request asks for is not the key's.
enum class KeyLimit { kRequests, kTokens, kConcurrent, kMaxTokens, kPriority, kTenant };
inline constexpr int kKeyLimits = 6;

// Why a call was not let in.
enum class KeyFault { kMissing, kUnknown, kExpired };
inline constexpr int kKeyFaults = 3;

// Thread-safe; lives no longer than the registry. Made only where there are keys.
class KeyMetrics {
 public:
  explicit KeyMetrics(MetricRegistry& registry);

  // Of one key.
  struct Series {
    Counter* requests;
    Counter* prompt_tokens;
    Counter* output_tokens;
    std::array<Counter*, kKeyLimits> refusals;
  };
  // Those of the key of this name, which exist from now on. Keys beyond the first 1,024 share theirs.
  Series For(const std::string& name);

  void CountFault(KeyFault fault) { faults_[static_cast<int>(fault)]->Increment(); }
  // The file has changed, and is in use or (not `ok`) cannot be.
  void CountReload(bool ok) { (ok ? reloads_ok_ : reloads_error_).Increment(); }

 private:
  MetricRegistry& registry_;
  std::array<Counter*, kKeyFaults> faults_;
  Counter& reloads_ok_;
  Counter& reloads_error_;
};

}  // namespace runahead
