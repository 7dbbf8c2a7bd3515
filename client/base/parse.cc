#include "client/base/parse.h"

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/utf8.h"

namespace runahead {

absl::StatusOr<std::vector<int32_t>> ParseIds(absl::string_view text) {
  std::vector<int32_t> ids;
  if (absl::StripAsciiWhitespace(text).empty()) return ids;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    if (!absl::SimpleAtoi(item, &ids.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("'", absl::CHexEscape(item.substr(0, 40)),
                                                     "' is no whole number of 32 bits; write them like 1,2,3"));
    }
  }
  return ids;
}

absl::StatusOr<v1::ChatMessage> ParseMessage(absl::string_view text) {
  const size_t colon = text.find(':');
  if (colon == absl::string_view::npos || colon == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text.substr(0, 40), "' has no role; write it like 'user:What is a chain?'"));
  }
  RUNAHEAD_RETURN_IF_ERROR(CheckUtf8(text));
  v1::ChatMessage message;
  message.set_role(std::string(text.substr(0, colon)));
  message.set_content(std::string(text.substr(colon + 1)));
  return message;
}

absl::Status InFlag(absl::string_view flag, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", status.message()));
}

absl::Status CheckUtf8(absl::string_view text) {
  const std::string_view all(text.data(), text.size());
  for (size_t at = 0; at < all.size();) {
    const Utf8Step step = NextUtf8(all.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) {
      return absl::InvalidArgumentError(absl::StrCat("is not valid UTF-8 at byte ", at));
    }
    at += step.bytes;
  }
  return absl::OkStatus();
}

}  // namespace runahead
