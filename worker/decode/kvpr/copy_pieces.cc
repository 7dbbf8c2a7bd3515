#include "worker/decode/kvpr/copy_pieces.h"

#include <algorithm>

namespace runahead {

void AddPieces(const ConstBufferRef& from, const BufferRef& to, size_t piece_bytes, std::vector<CopyPart>& parts) {
  for (size_t done = 0; done < from.size; done += piece_bytes) {
    const size_t bytes = std::min(piece_bytes, from.size - done);
    parts.push_back({from.Slice(done, bytes), to.Slice(done, bytes)});
  }
}

}  // namespace runahead
