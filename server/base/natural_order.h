// The order in which people count what they have numbered: prefill-2 before prefill-10.
#pragma once

#include "absl/strings/string_view.h"

namespace runahead {

// Whether `a` comes before `b`. Runs of digits compare as numbers, however long, all else byte by byte; of texts that
// are the same so ("a1", "a01") the one that is less as bytes. A strict order of all texts. Pure.
bool NaturalLess(absl::string_view a, absl::string_view b);

}  // namespace runahead
