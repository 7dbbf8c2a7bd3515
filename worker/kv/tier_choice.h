// Whether a decode worker's KV fits in device memory.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/kv/store.h"

namespace runahead {

// A store in device memory, where it fits in what is left of that with `spare_bytes` beside it, for what comes later;
// else RESOURCE_EXHAUSTED. Other errors are those of KvStore::Create. options.tier is set.
absl::StatusOr<std::unique_ptr<KvStore>> CreateDeviceStore(KvStoreOptions options, size_t spare_bytes, Device& device,
                                                           Clock& clock);

}  // namespace runahead
