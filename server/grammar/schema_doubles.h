// Names that stand twice in one object of a JSON schema: a parser keeps one of them, and leaves the other out silently.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace runahead {

// INVALID_ARGUMENT says the place of the first name that its object has already, a JSON pointer. A text that is no JSON
// is judged up to where it stops to be.
absl::Status RefuseDoubledNames(absl::string_view text);

}  // namespace runahead
