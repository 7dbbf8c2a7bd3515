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
  return LayerRing(std::move(memory), rows, {rows}, std::min(fit, layers));
}

LayerRing LayerRing::Part(const LayerPart& part) const {
  return LayerRing(memory_, all_, part, slots());
}

BufferRef LayerRing::AllKv(int64_t layer) const {
  return memory_.Slice(static_cast<size_t>(layer % slots()) * all_.bytes(), all_.kv_bytes());
}

BufferRef LayerRing::AllX(int64_t layer) const {
  return memory_.Slice(static_cast<size_t>(layer % slots()) * all_.bytes() + all_.kv_bytes(), all_.x_bytes());
}

BufferRef LayerRing::Kv(int64_t layer) const {
  return AllKv(layer).Slice(static_cast<size_t>(own_.kv_begin * own_.rows.kv_row_bytes), own_.rows.kv_bytes());
}

BufferRef LayerRing::X(int64_t layer) const {
  return AllX(layer).Slice(static_cast<size_t>(own_.x_begin * own_.rows.x_row_bytes), own_.rows.x_bytes());
}

}  // namespace runahead
