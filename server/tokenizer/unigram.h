// The likeliest tokens of a word.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "server/tokenizer/byte_trie.h"
#include "server/tokenizer/word_model.h"

namespace runahead {

// Of all ways to cut a word into tokens, the one with the greatest sum of scores; a character without a token costs
// more than any token. O(n) in the word, times the longest token.
class Unigram : public WordModel {
 public:
  // `pieces` and `scores` by id; an empty piece is none. `lowest`: the lowest score of all.
  Unigram(absl::Span<const std::string_view> pieces, std::vector<double> scores, double lowest,
          const Fallback& fallback);

  absl::Status Encode(std::string_view word, Steps& steps, std::vector<int32_t>& ids) const override;

 private:
  // The best way to where a character begins or the word ends.
  struct Best {
    double score;
    uint32_t from;  // by character
    int32_t id;     // -1: a character without a token; -2: not reached yet
  };
  void Append(std::string_view word, const std::vector<Best>& best, std::vector<int32_t>& ids) const;

  ByteTrie pieces_;
  const std::vector<double> scores_;
  const double unknown_score_;
  const Fallback fallback_;
};

}  // namespace runahead
