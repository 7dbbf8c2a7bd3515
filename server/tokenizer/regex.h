// A pattern that cuts text into pieces.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace runahead {

// A pattern of the form that tokenizer.json files have, which is Oniguruma's; PCRE2 does the work. Immutable; any
// number of threads may use one at the same time.
class Regex {
 public:
  // INVALID_ARGUMENT when the pattern is wrong, can match nothing, or has what Oniguruma and PCRE2 understand
  // differently.
  static absl::StatusOr<Regex> Compile(const std::string& pattern);

  // The pattern that matches `text` and nothing else.
  static std::string Quoted(std::string_view text);

  // What is done with a piece; what is not OK ends the whole.
  using OnPiece = absl::FunctionRef<absl::Status(std::string_view piece, bool match)>;

  // Hands over the pieces of `text`: every match, and what lies between matches, in order and without empty ones, so
  // that joined they are `text`, which must be valid UTF-8. Look-ahead ends where the text ends. INTERNAL where the
  // pattern takes too long.
  absl::Status Split(std::string_view text, OnPiece on_piece) const;

 private:
  struct Compiled;  // keeps PCRE2's header out of ours
  explicit Regex(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace runahead
