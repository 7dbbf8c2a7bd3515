// In which memory a decode worker keeps its KV.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/kv/store.h"

namespace runahead {

// A store on the card, where the device has memory of its own and the store fits in what is left of it with
// `spare_bytes` beside it, for what comes later; else in host memory. options.tier is set accordingly. Errors are those
// of KvStore::Create.
absl::StatusOr<std::unique_ptr<KvStore>> CreateStoreWhereItFits(KvStoreOptions options, size_t spare_bytes,
                                                                Device& device, Clock& clock);

}  // namespace runahead
