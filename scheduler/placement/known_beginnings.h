// Which workers have KV of the beginnings of which prompts, as far as was told. A guess: workers say late that KV had
// to go, or not at all. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/placement/beginning_hash.h"
#include "scheduler/placement/prefix_tree.h"

namespace runahead {

// What all sequences take that are known, at most: ids of some ten million tokens, whose KV is a terabyte where a token
// takes 100 kB, and a sixteenth of the memory that requests have by default.
inline constexpr int64_t kMostKnownBytes = int64_t{64} << 20;

// Shorter beginnings are worth nothing: a pass takes about as long without them, for it reads the weights once.
inline constexpr int64_t kLeastKnownTokens = 32;

// For one thread at a time.
class KnownBeginnings {
 public:
  // A process, and its epoch: what it had before it is not there any more.
  struct Life {
    uint64_t incarnation = 0;
    uint32_t epoch = 0;
    friend auto operator<=>(const Life&, const Life&) = default;
  };

  explicit KnownBeginnings(int64_t most_bytes = kMostKnownBytes) : most_bytes_(most_bytes) {}

  // A sequence of these ids has ended at the worker, whose empty store holds so many tokens. What was used longest ago
  // makes room. `lesson` is the caller's number of this news, no lower than those of before.
  void Learn(const Life& worker, int64_t capacity_tokens, absl::string_view salt, absl::Span<const int32_t> ids,
             uint64_t lesson);

  // Of how many of the first `ids` the worker may have KV: 0, or kLeastKnownTokens at least.
  int64_t Known(const Life& worker, absl::string_view salt, absl::Span<const int32_t> ids) const;

  // The worker has KV of less than `least` of the first `ids`, as it said when it was asked, after lesson `asked`.
  // Known() says less, too, of whatever begins with these, until it is told otherwise. What was learned later than
  // `asked` is known all the same: it may be newer than what the worker said.
  void Gone(const Life& worker, absl::string_view salt, absl::Span<const int32_t> ids, int64_t least, uint64_t asked);

  // The worker has evicted the beginnings with these values of BeginningHash, as it said when it was asked after lesson
  // `asked`. They are forgotten with all that begins so; what was learned later stays, as above. An unknown hash
  // changes nothing. A last chunk of which more or less was learned than the worker kept has another hash: it stays
  // until what is before it goes, or until it is asked for. Where two beginnings have one hash, the wrong one may be
  // forgotten: it is computed again.
  void Evicted(const Life& worker, absl::Span<const uint64_t> hashes, uint64_t asked);

  // The workers that are there; what others had is forgotten.
  void Retain(absl::Span<const Life> workers);

  int64_t tokens() const;  // of all workers

  struct Size {
    int64_t tokens = 0;
    int64_t bytes = 0;  // that they take here
    Size& operator+=(const Size& more) {
      tokens += more.tokens;
      bytes += more.bytes;
      return *this;
    }
  };
  // What the worker may have, of all salts or of one.
  Size SizeOf(const Life& worker, std::optional<absl::string_view> salt = std::nullopt) const;
  // Likewise of all workers.
  Size SizeOfAll(std::optional<absl::string_view> salt = std::nullopt) const;

  // Whatever was learned until now, of all salts or of one, is known no more.
  void Forget(std::optional<absl::string_view> salt);

 private:
  // Tokens that stand in one node. Beginnings are known by the token all the same, but for what is Gone.
  static constexpr int64_t kChunkTokens = kHashedTokens;
  // What a node takes beside its ids: its own fields, its places in three containers, and the heap's share in each.
  static constexpr int64_t kNodeBytes = 576;

  struct Chunk {
    uint64_t lesson = 0;  // the last one that had it, or one behind it
    uint64_t hash = 0;    // BeginningHash up to its end
  };
  using Tree = PrefixTree<Chunk>;
  // What a worker has.
  struct Beginnings {
    Tree tree{kChunkTokens};
    // Nodes of the tree; of several that have one hash, one or none.
    absl::flat_hash_map<uint64_t, Tree::Node*> by_hash;

    void Forget(absl::Span<const Chunk> removed);
    bool RemoveOldest();
  };

  static int64_t BytesOf(const Tree& tree);
  static Size SizeOfTree(const Tree& tree, std::optional<absl::string_view> salt);

  const int64_t most_bytes_;
  std::map<Life, std::unique_ptr<Beginnings>> workers_;
};

}  // namespace runahead
