#include "worker/kv/tier_choice.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {

absl::StatusOr<std::unique_ptr<KvStore>> CreateDeviceStore(KvStoreOptions options, size_t spare_bytes, Device& device,
                                                           Clock& clock) {
  options.tier = MemoryKind::kDevice;
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<KvStore> store, KvStore::Create(options, device, clock));
  RUNAHEAD_RETURN_IF_ERROR(device.Allocate(spare_bytes, MemoryKind::kDevice).status());  // and gives it back
  return store;
}

}  // namespace runahead
