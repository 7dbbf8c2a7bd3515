// A compiled PCRE2 pattern that cuts text into pieces.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace runahead {

// Immutable; any number of threads may use one at the same time.
class Regex {
 public:
  // INTERNAL when the pattern is wrong: patterns are ours, never a caller's.
  static absl::StatusOr<Regex> Compile(const std::string& pattern);

  // Appends the pieces of `text` to `pieces`: every match, and what lies between matches, in order and without empty
  // ones, so that joined they are `text`. `text` must be valid UTF-8. Look-ahead ends where `text` ends.
  absl::Status Split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  explicit Regex(std::shared_ptr<const void> code) : code_(std::move(code)) {}

  std::shared_ptr<const void> code_;  // pcre2_code_8; its header stays out of ours
};

}  // namespace runahead
