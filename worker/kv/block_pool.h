// The blocks of one tier: where they lie, and who still needs them. Knows neither leases nor what has arrived.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/buffer.h"
#include "kernels/base/device.h"

namespace runahead {

inline constexpr int64_t kKvBlockTokens = 256;

// Consecutive KV rows of one layer.
struct KvSpan {
  BufferRef rows;
  int64_t tokens = 0;
};

// How many blocks `tokens` tokens take.
inline int64_t KvBlocksFor(int64_t tokens) {
  return (tokens + kKvBlockTokens - 1) / kKvBlockTokens;
}

// Where the rows of blocks lie: [layers][blocks][kKvBlockTokens][row_bytes] of one buffer, so that a block is its
// number in every layer. Never changes: any thread may read it. Copies are cheap and keep the memory alive.
class KvArena {
 public:
  // `memory` is of layers * blocks * kKvBlockTokens * row_bytes bytes.
  KvArena(std::shared_ptr<Buffer> memory, int64_t layers, int64_t blocks, int64_t row_bytes);
  // In memory of kind `tier`. All numbers are at least 1.
  static absl::StatusOr<KvArena> Create(Device& device, MemoryKind tier, int64_t layers, int64_t blocks,
                                        int64_t row_bytes);

  int64_t blocks() const { return blocks_; }
  // Of one block in all layers.
  int64_t block_bytes() const { return layers_ * kKvBlockTokens * row_bytes_; }
  // All blocks of `layer`: [blocks][kKvBlockTokens][row_bytes].
  BufferRef Layer(int64_t layer) const;
  // The row of Layer's in which a token of a sequence lies whose blocks are `blocks`: the same in every layer.
  static int64_t RowOf(absl::Span<const int32_t> blocks, int64_t token) {
    return blocks[token / kKvBlockTokens] * kKvBlockTokens + token % kKvBlockTokens;
  }
  // Tokens [begin, end) of a sequence that lies in `blocks`, in token order, joined where they touch.
  std::vector<KvSpan> Spans(absl::Span<const int32_t> blocks, int64_t layer, int64_t begin, int64_t end) const;

 private:
  std::shared_ptr<Buffer> memory_;
  int64_t layers_, blocks_, row_bytes_;
};

// Not thread-safe: the owner's lock guards it. A block is free without a reference. Who takes a block has the first
// one; sequences that share it have one each. A block may be kept besides, for what it holds: it is free all the same
// when it has no reference, but is taken only once nobody keeps it.
class BlockPool {
 public:
  // Of the arena's blocks; other arenas of as many blocks may hold more of the same tokens under the same numbers.
  explicit BlockPool(KvArena arena);

  const KvArena& arena() const { return arena_; }
  int64_t free() const { return free_; }                    // blocks, kept ones included
  int64_t used() const { return arena_.blocks() - free_; }  // blocks; a shared one counts once
  int64_t kept() const { return kept_free_; }               // of the free blocks, those that are kept
  int64_t blank() const { return free_ - kept_free_; }      // blocks that Take may give

  // `count` blank blocks with one reference each: the first run that holds them all, else the lowest ones.
  // RESOURCE_EXHAUSTED, in tokens, where fewer are blank.
  absl::StatusOr<std::vector<int32_t>> Take(int64_t count);
  // One more reference to each; all are in use, or kept.
  void Share(absl::Span<const int32_t> blocks);
  // One reference less to each.
  void Return(absl::Span<const int32_t> blocks);
  // The block, which is in use, is kept once more.
  void Keep(int32_t block);
  // It is kept once less.
  void Forget(int32_t block);

 private:
  bool IsBlank(int32_t block) const { return references_[block] == 0 && keeps_[block] == 0; }

  KvArena arena_;
  std::vector<int32_t> references_, keeps_;  // of each block
  int64_t free_, kept_free_ = 0;
};

}  // namespace runahead
