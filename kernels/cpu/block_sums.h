// Sums of large blocks of memory, at the speed of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace runahead {

// A sum of each block: any byte of it that is another makes it another. It depends on the bytes alone. Blocks until all
// is read, by `threads` threads, the caller among them.
std::vector<uint64_t> SumBlocks(const std::vector<absl::Span<const std::byte>>& blocks, int threads);

}  // namespace runahead
