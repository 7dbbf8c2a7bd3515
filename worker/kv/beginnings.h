// Which beginnings of token sequences a store keeps KV of, and in which blocks. Knows neither memory nor leases.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/placement/prefix_tree.h"
#include "worker/kv/block_pool.h"

namespace runahead {

// Not thread-safe: the owner's lock guards it. Sequences that begin alike have one block for each whole chunk of
// kKvBlockTokens tokens. Tokens are compared, and those of one salt are never found under another.
class Beginnings {
 public:
  // Of each layer's attention, as KvStoreOptions::windows.
  explicit Beginnings(std::vector<int64_t> windows) : windows_(std::move(windows)), tree_(kKvBlockTokens) {}

  // What a prompt has in common with what is kept.
  struct Hit {
    int64_t tokens = 0;                // the first ones; 0: none
    std::vector<int32_t> blocks = {};  // that hold them, in token order; of the last one maybe the first rows only
    std::vector<bool> of_answer = {};  // of each of them: decode computed it, as a token of an answer
    int64_t hole = 0;                  // in layers with windows, rows of tokens before this one may be absent
    bool has_x = false;                // X of all of them lies beside their KV
  };
  // The longest that queries behind it can be computed after. Where windows hid rows that those would see it is no hit,
  // though a shorter one might be.
  Hit Find(absl::string_view salt, absl::Span<const int32_t> ids) const;
  // All of `ids` was used just now: what was used longest ago goes first.
  void Use(absl::string_view salt, absl::Span<const int32_t> ids) { tree_.Use(tree_.Find(salt, ids)); }

  // Blocks that are kept once more, and once less: to be told to the pool, in this order.
  struct Change {
    std::vector<int32_t> kept, forgotten;
    std::vector<uint64_t> fresh = {};  // BeginningHash of what was not kept before, up to each end of a chunk
  };
  // Token t of `ids` lies in row t % kKvBlockTokens of blocks[t / kKvBlockTokens]; the others as Hit's.
  // What is kept of it already stays where it is, unless the newer block has rows that the older one has not, and lacks
  // none of its. It may be the same block, of which the older sequence did not have all rows.
  Change Add(absl::string_view salt, absl::Span<const int32_t> ids, absl::Span<const int32_t> blocks,
             const std::vector<bool>& of_answer, int64_t hole, bool has_x = false);
  struct Removed {
    int32_t block = -1;  // kept once less
    uint64_t hash = 0;   // BeginningHash of its tokens and all before them
  };
  // The end of what was used longest ago; nothing where nothing is kept.
  std::optional<Removed> RemoveOldest();
  // The blocks, kept once less each, of all that was kept under the salt.
  std::vector<int32_t> RemoveSalt(absl::string_view salt);

 private:
  // Of a chunk.
  struct Kept {
    int32_t block = -1;
    std::bitset<kKvBlockTokens> of_answer = {};
    int64_t hole = 0;  // 0, or a token of the chunk or its end: before it, rows of layers with windows may be absent
    bool has_x = false;
    uint64_t hash = 0;  // BeginningHash up to its end
  };
  // The first token that some layer's query at `position` sees through a window; `position` where no layer has one.
  int64_t FirstSeenByWindows(int64_t position) const;

  const std::vector<int64_t> windows_;
  PrefixTree<Kept> tree_;
};

}  // namespace runahead
