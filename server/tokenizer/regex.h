// A compiled PCRE2 pattern that cuts text into pieces.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace runahead {

// Immutable; any number of threads may use one at the same time.
class Regex {
 public:
  // INTERNAL when the pattern is wrong: patterns are ours, never a caller's.
  static absl::StatusOr<Regex> Compile(const std::string& pattern);

  // What is done with a piece; what is not OK ends the whole.
  using OnPiece = absl::FunctionRef<absl::Status(std::string_view)>;

  // Hands over the pieces of `text`: every match, and what lies between matches, in order and without empty ones, so
  // that joined they are `text`, which must be valid UTF-8. Look-ahead ends where the text ends.
  absl::Status Split(std::string_view text, OnPiece on_piece) const;

 private:
  struct Compiled;  // keeps PCRE2's header out of ours
  explicit Regex(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace runahead
