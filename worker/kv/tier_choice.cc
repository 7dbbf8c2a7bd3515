#include "worker/kv/tier_choice.h"

#include <utility>

namespace runahead {

absl::StatusOr<std::unique_ptr<KvStore>> CreateStoreWhereItFits(KvStoreOptions options, Device& device, Clock& clock) {
  if (!device.host_reads_device_memory()) {
    options.tier = MemoryKind::kDevice;
    absl::StatusOr<std::unique_ptr<KvStore>> store = KvStore::Create(options, device, clock);
    if (!absl::IsResourceExhausted(store.status())) return store;
  }
  options.tier = MemoryKind::kHost;
  return KvStore::Create(options, device, clock);
}

}  // namespace runahead
