// Products of many rows, in blocks, in pieces that scratch memory holds.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/base/status_macros.h"

namespace runahead {

// Calls piece(first, blocks, count) for pieces of whole blocks: `blocks` are those of rows [first, first + count),
// which are at most `most`, or one block. `blocks`: as LinearOptions has them.
inline absl::Status ForRowBlocks(
    absl::Span<const int32_t> blocks, int64_t most,
    absl::FunctionRef<absl::Status(int64_t first, absl::Span<const int32_t> blocks, int64_t count)> piece) {
  int64_t first = 0;
  for (size_t begin = 0, end = 0; begin < blocks.size(); begin = end) {
    int64_t count = 0;
    for (; end < blocks.size() && (end == begin || count + blocks[end] <= most); ++end) count += blocks[end];
    RUNAHEAD_RETURN_IF_ERROR(piece(first, blocks.subspan(begin, end - begin), count));
    first += count;
  }
  return absl::OkStatus();
}

}  // namespace runahead
