// The file that says which API keys a router takes, and what each may: docs/api-keys.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/placement/fair_order.h"

namespace runahead {

inline constexpr size_t kMaxApiKeys = 1024;

// What a key may. 0 is no limit.
struct KeyLimits {
  RequestPriority priority = RequestPriority::kNormal;  // the highest that its requests may ask for
  double weight = 1;                                    // of its share beside others that wait
  int64_t requests_per_minute = 0;                      // calls of any method
  int64_t tokens_per_minute = 0;                        // of prompts and answers
  int64_t concurrent_requests = 0;                      // Generate calls that run or wait
  int64_t max_tokens = 0;                               // of an answer

  friend bool operator==(const KeyLimits&, const KeyLimits&) = default;
};

struct ApiKeyEntry {
  std::string name;                             // IsApiKeyName; also the tenant's
  std::string hash;                             // of the key, 32 bytes
  std::string old_hash;                         // of another that is taken as well; empty: of none
  absl::Time expires = absl::InfiniteFuture();  // from then on neither is taken
  KeyLimits limits;
};

// The entries of a whole file, which is called `path` in messages. At least one; names and hashes differ.
// INVALID_ARGUMENT names the line, the entry and what is allowed, and holds no hash, nor what stands in its place.
absl::StatusOr<std::vector<ApiKeyEntry>> ParseApiKeys(const std::string& text, const std::string& path);

}  // namespace runahead
