// Byte-pair merging within one word.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "server/tokenizer/merges.h"
#include "server/tokenizer/word_model.h"

namespace runahead {

// Again and again the adjacent pair with the lowest rank, leftmost first, becomes one token, until no pair can:
// O(n log n). A word begins as the tokens of its characters, or of its bytes where `characters` is empty.
class Bpe : public WordModel {
 public:
  // `merges` by rank; of two for one pair the last counts. `characters`: the tokens of one character, by it; what is
  // not among them falls back.
  Bpe(absl::Span<const Merge> merges, absl::flat_hash_map<uint32_t, int32_t> characters, const Fallback& fallback);

  absl::Status Encode(std::string_view word, Steps& steps, std::vector<int32_t>& ids) const override;

 private:
  struct Ranked {
    uint32_t rank;
    int32_t result;
  };
  // One symbol of a word; symbols form a list from which merged ones drop out.
  struct Symbol {
    int32_t id;        // -1: merged away
    int32_t previous;  // index, or -1
    int32_t next;      // index, or -1
  };

  std::vector<Symbol> Begin(std::string_view word) const;
  const Ranked* Find(int32_t left, int32_t right) const;

  absl::flat_hash_map<uint64_t, Ranked> merges_;  // by left << 32 | right
  const absl::flat_hash_map<uint32_t, int32_t> characters_;
  const Fallback fallback_;
};

}  // namespace runahead
