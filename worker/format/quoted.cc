#include "worker/format/quoted.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/escaped.h"

namespace runahead {

std::string Quoted(absl::string_view name) {
  constexpr size_t kShown = 80;
  const absl::string_view shown = name.substr(0, kShown);
  return absl::StrCat("'", absl::CHexEscape({shown.data(), shown.size()}), name.size() > kShown ? "...'" : "'");
}

std::string CleanText(absl::string_view text) {
  return Escaped(text, absl::string_view::npos, /*quotes=*/false);
}

std::string CleanName(absl::string_view name) {
  constexpr size_t kMost = 200;  // characters; the longest of models in use have some 100
  return Escaped(name, kMost, /*quotes=*/false);
}

}  // namespace runahead
