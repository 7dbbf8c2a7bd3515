// Texts that come from a file, as people and programs may have them.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace runahead {

// In quotes, escaped, and cut where it is long.
std::string Quoted(absl::string_view name);

// `text` as it is, but for what Escaped (kernels/base/escaped.h) escapes: bytes that are no UTF-8, and what steers a
// terminal. They would make a page of metrics, a message of a protocol or a line of JSON unreadable as a whole.
std::string CleanText(absl::string_view text);

// The same of a model's name, cut where it is longer than any label should be.
std::string CleanName(absl::string_view name);

}  // namespace runahead
