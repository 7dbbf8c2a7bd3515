#include "kernels/cuda/cuda_params.h"

#include <algorithm>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr size_t kChunkBytes = 1 << 20;
constexpr size_t kArrayAlignment = 256;

}  // namespace

struct CudaParamRing::Chunk {
  std::shared_ptr<Buffer> host, device;
};

absl::StatusOr<CudaParamRing::Piece> CudaParamRing::Take(size_t bytes) {
  bytes = (std::max<size_t>(bytes, 1) + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment;
  if (chunks_.empty() || used_ + bytes > chunks_.back()->host->size()) {
    // Only the ring itself still holds a chunk whose pieces are all done with.
    const auto idle = std::find_if(chunks_.begin(), chunks_.end(), [bytes](const std::shared_ptr<Chunk>& chunk) {
      return chunk.use_count() == 1 && chunk->host->size() >= bytes;
    });
    if (idle != chunks_.end()) {
      std::rotate(idle, idle + 1, chunks_.end());
    } else {
      auto chunk = std::make_shared<Chunk>();
      const size_t size = std::max(bytes, kChunkBytes);
      RUNAHEAD_ASSIGN_OR_RETURN(chunk->host, memory_->AllocatePinned(size));
      if (with_device_) {
        RUNAHEAD_ASSIGN_OR_RETURN(chunk->device, memory_->AllocateDevice(size));
      }
      chunks_.push_back(std::move(chunk));
    }
    used_ = 0;
  }
  const std::shared_ptr<Chunk>& chunk = chunks_.back();
  Piece piece{chunk->host->data() + used_, with_device_ ? chunk->device->data() + used_ : nullptr, chunk};
  used_ += bytes;
  return piece;
}

}  // namespace runahead
