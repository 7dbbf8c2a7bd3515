#include "worker/format/quoted.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace runahead {

std::string Quoted(absl::string_view name) {
  constexpr size_t kShown = 80;
  const absl::string_view shown = name.substr(0, kShown);
  return absl::StrCat("'", absl::CHexEscape({shown.data(), shown.size()}), name.size() > kShown ? "...'" : "'");
}

}  // namespace runahead
