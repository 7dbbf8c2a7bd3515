// Which workers have KV of the beginnings of which prompts, as far as was told. A guess: workers drop KV without a
// word. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
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
  static constexpr int64_t kChunkTokens = 256;
  // What a node takes beside its ids: its own fields, its places in two containers, and the heap's share in each.
  static constexpr int64_t kNodeBytes = 512;

  using Tree = PrefixTree<uint64_t>;  // of the last lesson that had the node, or one behind it

  static int64_t BytesOf(const Tree& tree);
  static Size SizeOfTree(const Tree& tree, std::optional<absl::string_view> salt);

  const int64_t most_bytes_;
  std::map<Life, std::unique_ptr<Tree>> trees_;
};

}  // namespace runahead
