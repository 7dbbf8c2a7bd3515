// Cuts text into the words within which byte-pair encoding merges.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tokenizer/regex.h"

namespace runahead {

// The rule that a model was trained with, by the name that GGUF files give it (tokenizer.ggml.pre). Immutable and
// thread-safe.
class PreTokenizer {
 public:
  // INVALID_ARGUMENT names an unknown rule and those that are known.
  static absl::StatusOr<PreTokenizer> Create(std::string_view name);

  // Hands over the words of `text`, which joined are `text`, in order. Bytes that are no UTF-8 form words of their own.
  // What is not OK of `on_word` ends it.
  absl::Status Split(std::string_view text, Regex::OnPiece on_word) const;

  // A word that is a token as a whole is that token, whatever the merges would make of it.
  bool whole_words_first() const { return whole_words_first_; }
  // Whether a sequence begins with BOS when the file does not say.
  bool adds_bos() const { return adds_bos_; }

 private:
  PreTokenizer() = default;
  // The passes from `pass` on.
  absl::Status Cut(std::string_view piece, size_t pass, Regex::OnPiece on_word) const;

  std::vector<Regex> passes_;  // each cuts the pieces of the one before
  bool whole_words_first_ = false;
  bool adds_bos_ = false;
};

}  // namespace runahead
