// Cuts text into the words within which a tokenizer's model works.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tokenizer/regex.h"

namespace runahead {

// One way to cut: where `pattern` matches.
struct SplitRule {
  // What becomes of the matches.
  enum class Matches {
    kIsolated,      // each is a word
    kRemoved,       // dropped
    kWithPrevious,  // each ends the word that is before it
    kWithNext,      // each begins the word that is behind it
    kContiguous,    // adjacent ones are one word
  };
  std::string pattern;
  Matches matches = Matches::kIsolated;
  bool inverted = false;       // what lies between matches are the matches
  bool over_alphabet = false;  // looks at the word as it is written in the byte alphabet
};

// The rules that a model was trained with, each cutting the pieces of the one before. Immutable and thread-safe.
class PreTokenizer {
 public:
  // INVALID_ARGUMENT says what is wrong with a pattern.
  static absl::StatusOr<PreTokenizer> Create(const std::vector<SplitRule>& rules);

  using OnWord = absl::FunctionRef<absl::Status(std::string_view)>;

  // Hands over the words of `text` in order; joined they are `text`, but for what rules remove. Bytes that are no UTF-8
  // form words of their own. What is not OK of `on_word` ends it.
  absl::Status Split(std::string_view text, OnWord on_word) const;

  // Whether text may be dropped.
  bool removes() const;

 private:
  struct Pass {
    SplitRule rule;
    Regex regex;
  };

  PreTokenizer() = default;
  // The passes from `pass` on.
  absl::Status Cut(std::string_view piece, size_t pass, OnWord on_word) const;

  std::vector<Pass> passes_;
};

}  // namespace runahead
