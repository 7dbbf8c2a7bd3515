// Copies over the link in pieces: what else is to cross it meanwhile waits for no more than one of them.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/base/device.h"

namespace runahead {

// Of one copy of KV or X. A link is at its full rate with it.
inline constexpr size_t kKvPieceBytes = 2 << 20;
// Of one copy of weights: KV and X of the layer that computes are wanted sooner.
inline constexpr size_t kWeightPieceBytes = 512 << 10;

// Adds to `parts` copies of `from` to `to`, which is as large, of at most `piece_bytes` each.
void AddPieces(const ConstBufferRef& from, const BufferRef& to, size_t piece_bytes, std::vector<CopyPart>& parts);

}  // namespace runahead
