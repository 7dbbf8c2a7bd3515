// A compiled PCRE2 pattern that cuts text into pieces.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace runahead {

// Immutable; any number of threads may use one at the same time.
class Regex {
 public:
  // INTERNAL when the pattern is wrong: patterns are ours, never a caller's.
  static absl::StatusOr<Regex> Compile(const std::string& pattern);

  // The pieces of each of `texts`: every match, and what lies between matches, in order and without empty ones, so that
  // joined they are `texts` joined. Texts must be valid UTF-8. Look-ahead ends where a text ends.
  absl::StatusOr<std::vector<std::string_view>> Split(absl::Span<const std::string_view> texts) const;

 private:
  struct Compiled;  // keeps PCRE2's header out of ours
  explicit Regex(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace runahead
