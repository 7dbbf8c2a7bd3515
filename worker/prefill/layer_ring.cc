#include "worker/prefill/layer_ring.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace runahead {

absl::StatusOr<LayerRing> LayerRing::Create(BufferRef memory, int64_t layers, const LayerRows& rows) {
  const int64_t fit = static_cast<int64_t>(memory.size / rows.bytes());
  const int64_t least = std::min(layers, kMinLayerSlots);
  if (fit < least) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the KV of ", rows.kv, " tokens and X of ", rows.x, " needs ", least, " layer buffers of ", rows.bytes(),
        " bytes; this worker has ", memory.size, " bytes a job: raise prefill_memory or shorten the prompt"));
  }
  return LayerRing(std::move(memory), rows, std::min(fit, layers));
}

BufferRef LayerRing::Kv(int64_t layer) const {
  return memory_.Slice(Begin(layer), rows_.kv_bytes());
}

BufferRef LayerRing::X(int64_t layer) const {
  return memory_.Slice(Begin(layer) + rows_.kv_bytes(), rows_.x_bytes());
}

}  // namespace runahead
