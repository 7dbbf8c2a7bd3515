#include "worker/prefill/layer_ring.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace runahead {

absl::StatusOr<LayerRing> LayerRing::Create(BufferRef memory, int64_t layers, int64_t tokens, int64_t row_bytes) {
  const size_t slot_bytes = static_cast<size_t>(tokens * row_bytes);
  const int64_t fit = static_cast<int64_t>(memory.size / slot_bytes);
  const int64_t least = std::min(layers, kMinLayerSlots);
  if (fit < least) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the KV of ", tokens, " tokens needs ", least, " layer buffers of ", slot_bytes, " bytes; this worker has ",
        memory.size, " bytes a job: raise prefill_memory or shorten the prompt"));
  }
  return LayerRing(std::move(memory), slot_bytes, std::min(fit, layers));
}

BufferRef LayerRing::Slot(int64_t layer) const {
  return memory_.Slice(static_cast<size_t>(layer % slots()) * slot_bytes_, slot_bytes_);
}

}  // namespace runahead
