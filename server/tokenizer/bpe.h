// Byte-pair merging within one word.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/tokenizer/keep_going.h"

namespace runahead {

// The merges of a vocabulary. Immutable after building; thread-safe.
class BpeMerges {
 public:
  // `tokens` in the byte-level alphabet, by id; `merges` as "left right", by rank. INVALID_ARGUMENT names a merge whose
  // parts or result are no tokens. A token that stands twice counts by its first id.
  static absl::StatusOr<BpeMerges> Build(absl::Span<const std::string_view> tokens,
                                         absl::Span<const std::string_view> merges);

  // Appends the tokens of `word` to `ids`: again and again the adjacent pair with the lowest rank, leftmost first,
  // becomes one, until no pair can. O(n log n), in at most 28 bytes of memory for each of the word. A byte without a
  // token of its own is left out, as the models' own tokenizers do. Fails only where `steps` do.
  absl::Status Encode(std::string_view word, Steps& steps, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    uint32_t rank;
    int32_t result;
  };

  BpeMerges() = default;
  const Merge* Find(int32_t left, int32_t right) const;

  std::array<int32_t, 256> byte_ids_ = {};       // -1: none
  absl::flat_hash_map<uint64_t, Merge> merges_;  // by left << 32 | right
};

}  // namespace runahead
