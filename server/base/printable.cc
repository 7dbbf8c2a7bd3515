#include "server/base/printable.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/base/escaped.h"

namespace runahead {

std::string Printable(absl::string_view text, int most) {
  return Escaped(text, static_cast<size_t>(most), /*quotes=*/true);
}

std::string OneLine(absl::string_view text) {
  return Escaped(text, kOneLineCharacters, /*quotes=*/false);
}

absl::Status OneLine(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), OneLine(status.message()));
}

std::string FirstCharacters(absl::string_view text, int most) {
  absl::string_view rest = text;
  uint32_t code = 0;
  for (int taken = 0; taken < most && !rest.empty(); ++taken) rest.remove_prefix(NextCharacter(rest, code));
  return absl::StrCat(text.substr(0, text.size() - rest.size()), rest.empty() ? "" : "...");
}

}  // namespace runahead
