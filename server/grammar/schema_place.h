// Places in a JSON schema, for refusals.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "server/base/printable.h"

namespace runahead {

// INVALID_ARGUMENT that names a place, a JSON pointer.
inline absl::Status RefuseAt(absl::string_view place, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("at ", place.empty() ? "the root" : Printable(place, 256), ": ", why));
}

inline std::string PlaceBelow(absl::string_view place, absl::string_view name) {
  return absl::StrCat(place, "/", absl::StrReplaceAll(name, {{"~", "~0"}, {"/", "~1"}}));
}

inline std::string QuotedName(absl::string_view text) {
  return absl::StrCat("\"", Printable(text), "\"");
}

}  // namespace runahead
