// Finding the tokens that stand in a text by their own names, such as <|im_end|>.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace runahead {

// A set of names. Immutable once filled; thread-safe then.
class SpecialTokens {
 public:
  // `control`: only found where control tokens are asked for. An empty name is never found.
  void Add(std::string_view name, int32_t id, bool control);

  struct Match {
    size_t begin;
    size_t bytes;
    int32_t id;
  };

  // The first name in `text` from `from` on; the longest, where several begin at the same place.
  std::optional<Match> Find(std::string_view text, size_t from, bool with_control) const;

 private:
  struct End {
    int32_t id = -1;  // -1: no name ends here
    bool control = false;
  };

  // A trie: nodes by (parent << 8 | byte); node 0 is the root.
  absl::flat_hash_map<uint64_t, uint32_t> children_;
  std::vector<End> ends_ = {End()};
};

}  // namespace runahead
