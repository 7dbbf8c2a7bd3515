// By which groups KV of a model is quantised.
#pragma once

#include <cstdint>

namespace runahead {

// KvQuant::group for K, or V, of `kv_dim` values (KV heads times head size): 64 where these are whole groups of it,
// else 32; 0 where they are neither, and KV is not quantised.
constexpr int KvGroup(int64_t kv_dim) {
  if (kv_dim % 64 == 0) return 64;
  return kv_dim % 32 == 0 ? 32 : 0;
}

}  // namespace runahead
