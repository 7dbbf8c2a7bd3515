#include "worker/kv/block_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace runahead {

KvArena::KvArena(std::shared_ptr<Buffer> memory, int64_t layers, int64_t blocks, int64_t row_bytes)
    : memory_(std::move(memory)), layers_(layers), blocks_(blocks), row_bytes_(row_bytes) {
  RUNAHEAD_CHECK(static_cast<int64_t>(memory_->size()) == blocks_ * block_bytes());
}

BufferRef KvArena::Layer(int64_t layer) const {
  RUNAHEAD_CHECK(layer >= 0 && layer < layers_);
  const size_t bytes = static_cast<size_t>(blocks_ * kKvBlockTokens * row_bytes_);
  return {memory_, static_cast<size_t>(layer) * bytes, bytes};
}

std::vector<KvSpan> KvArena::Spans(absl::Span<const int32_t> blocks, int64_t layer, int64_t begin, int64_t end) const {
  std::vector<KvSpan> spans;
  while (begin < end) {
    const int64_t tokens = std::min(end, (begin / kKvBlockTokens + 1) * kKvBlockTokens) - begin;
    const int64_t row = layer * blocks_ * kKvBlockTokens + RowOf(blocks, begin);
    const size_t offset = static_cast<size_t>(row * row_bytes_);
    const size_t bytes = static_cast<size_t>(tokens * row_bytes_);
    if (!spans.empty() && spans.back().rows.offset + spans.back().rows.size == offset) {
      spans.back().rows.size += bytes;
      spans.back().tokens += tokens;
    } else {
      spans.push_back({BufferRef{memory_, offset, bytes}, tokens});
    }
    begin += tokens;
  }
  return spans;
}

absl::StatusOr<KvArena> KvArena::Create(Device& device, MemoryKind tier, int64_t layers, int64_t blocks,
                                        int64_t row_bytes) {
  RUNAHEAD_CHECK(layers > 0 && row_bytes > 0 && blocks > 0 && blocks <= std::numeric_limits<int32_t>::max());
  const size_t bytes = static_cast<size_t>(layers * blocks * kKvBlockTokens * row_bytes);
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory, device.Allocate(bytes, tier));
  return KvArena(std::move(memory), layers, blocks, row_bytes);
}

BlockPool::BlockPool(KvArena arena)
    : arena_(std::move(arena)), references_(arena_.blocks()), keeps_(arena_.blocks()), free_(arena_.blocks()) {}

absl::StatusOr<std::vector<int32_t>> BlockPool::Take(int64_t count) {
  if (count > blank()) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("the KV store is full: %d tokens are wanted and %d of %d are free; try again later",
                        count * kKvBlockTokens, blank() * kKvBlockTokens, arena_.blocks() * kKvBlockTokens));
  }
  const int32_t blocks = static_cast<int32_t>(arena_.blocks());
  std::vector<int32_t> taken;
  // The first run that holds all of them gives the fewest ranges to write and to read; else the lowest ones.
  int64_t run = 0;
  for (int32_t block = 0; block < blocks && run < count; ++block) {
    run = IsBlank(block) ? run + 1 : 0;
    if (run == count) {
      for (int64_t b = block - count + 1; b <= block; ++b) taken.push_back(static_cast<int32_t>(b));
    }
  }
  for (int32_t block = 0; static_cast<int64_t>(taken.size()) < count; ++block) {
    if (IsBlank(block)) taken.push_back(block);
  }
  for (const int32_t block : taken) references_[block] = 1;
  free_ -= count;
  return taken;
}

void BlockPool::Share(absl::Span<const int32_t> blocks) {
  for (const int32_t block : blocks) {
    RUNAHEAD_CHECK(references_[block] > 0 || keeps_[block] > 0);
    if (references_[block]++ > 0) continue;
    --free_;
    --kept_free_;
  }
}

void BlockPool::Return(absl::Span<const int32_t> blocks) {
  for (const int32_t block : blocks) {
    RUNAHEAD_CHECK(references_[block] > 0);
    if (--references_[block] > 0) continue;
    ++free_;
    if (keeps_[block] > 0) ++kept_free_;
  }
}

void BlockPool::Keep(int32_t block) {
  RUNAHEAD_CHECK(references_[block] > 0);
  ++keeps_[block];
}

void BlockPool::Forget(int32_t block) {
  RUNAHEAD_CHECK(keeps_[block] > 0);
  if (--keeps_[block] == 0 && references_[block] == 0) --kept_free_;
}

}  // namespace runahead
