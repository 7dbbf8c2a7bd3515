#include "worker/decode/kvpr/copy_pieces.h"

#include <algorithm>

#include "kernels/base/status_macros.h"

namespace runahead {

absl::Status CopyPieces(Device& device, Stream& stream, const ConstBufferRef& from, const BufferRef& to,
                        size_t piece_bytes) {
  for (size_t done = 0; done < from.size; done += piece_bytes) {
    const size_t bytes = std::min(piece_bytes, from.size - done);
    RUNAHEAD_RETURN_IF_ERROR(device.Copy(stream, from.Slice(done, bytes), to.Slice(done, bytes)));
  }
  return absl::OkStatus();
}

}  // namespace runahead
