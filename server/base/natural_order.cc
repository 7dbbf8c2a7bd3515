#include "server/base/natural_order.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"

namespace runahead {
namespace {

// Takes the number that `text` begins with, without zeros before it.
absl::string_view TakeNumber(absl::string_view& text) {
  const auto end = std::find_if_not(text.begin(), text.end(), absl::ascii_isdigit);
  absl::string_view number = text.substr(0, end - text.begin());
  text.remove_prefix(number.size());
  number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
  return number;
}

bool BeginsWithDigit(absl::string_view text) {
  return !text.empty() && absl::ascii_isdigit(text.front());
}

}  // namespace

bool NaturalLess(absl::string_view a, absl::string_view b) {
  absl::string_view left = a, right = b;
  while (!left.empty() && !right.empty()) {
    if (BeginsWithDigit(left) && BeginsWithDigit(right)) {
      const absl::string_view x = TakeNumber(left), y = TakeNumber(right);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      continue;
    }
    if (left.front() != right.front()) return left.substr(0, 1) < right.substr(0, 1);
    left.remove_prefix(1);
    right.remove_prefix(1);
  }
  if (left.empty() != right.empty()) return left.empty();
  return a < b;
}

}  // namespace runahead
