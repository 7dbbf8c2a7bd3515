#include "worker/handoff/slice.h"

#include <xxhash.h>

#include <memory>

namespace runahead {

uint64_t HashPieces(const std::vector<BufferRef>& pieces) {
  if (pieces.size() == 1) {
    return pieces[0].size == 0 ? XXH64(nullptr, 0, 0) : XXH64(pieces[0].data(), pieces[0].size, /*seed=*/0);
  }
  const std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> state(XXH64_createState(), &XXH64_freeState);
  XXH64_reset(state.get(), /*seed=*/0);
  for (const BufferRef& piece : pieces) {
    if (piece.size > 0) XXH64_update(state.get(), piece.data(), piece.size);
  }
  return XXH64_digest(state.get());
}

}  // namespace runahead
