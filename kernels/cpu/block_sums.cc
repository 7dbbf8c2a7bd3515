#include "kernels/cpu/block_sums.h"

#include <xxhash.h>

#include "kernels/base/thread_pool.h"

namespace runahead {
namespace {

// Threads share the largest block, too. It is part of what a sum is.
constexpr size_t kSummedBytes = size_t{4} << 20;

}  // namespace

std::vector<uint64_t> SumBlocks(const std::vector<absl::Span<const std::byte>>& blocks, int threads) {
  std::vector<absl::Span<const std::byte>> pieces;
  for (const absl::Span<const std::byte> block : blocks) {
    for (size_t at = 0; at < block.size(); at += kSummedBytes) pieces.push_back(block.subspan(at, kSummedBytes));
  }
  std::vector<uint64_t> of_pieces(pieces.size());
  ThreadPool(threads).ParallelFor(static_cast<int64_t>(pieces.size()),
                                  [&](int64_t i) { of_pieces[i] = XXH3_64bits(pieces[i].data(), pieces[i].size()); });
  std::vector<uint64_t> sums;
  const uint64_t* next = of_pieces.data();
  for (const absl::Span<const std::byte> block : blocks) {
    const size_t count = (block.size() + kSummedBytes - 1) / kSummedBytes;
    sums.push_back(XXH3_64bits(next, count * sizeof(uint64_t)));
    next += count;
  }
  return sums;
}

}  // namespace runahead
