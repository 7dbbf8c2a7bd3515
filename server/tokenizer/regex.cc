#include "server/tokenizer/regex.h"

#include <utility>

#include "absl/strings/str_cat.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace runahead {
namespace {

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

absl::StatusOr<Regex> Regex::Compile(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                                   &error, &offset, nullptr);
  if (code == nullptr) {
    return absl::InternalError(absl::StrCat("pattern '", pattern, "' at ", offset, ": ", ErrorText(error)));
  }
  // Where there is no JIT for this machine the interpreter does the same, slower.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return Regex(std::shared_ptr<const void>(code, [](pcre2_code* c) { pcre2_code_free(c); }));
}

absl::Status Regex::Split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, FreeMatchData> match(pcre2_match_data_create(1, nullptr));
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
  size_t done = 0;
  size_t from = 0;
  while (from < text.size()) {
    // The text is known to be valid; checking it again for every match would make this quadratic.
    const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                  PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) return absl::InternalError(absl::StrCat("splitting text failed: ", ErrorText(found)));
    if (range[1] <= from) return absl::InternalError("splitting text failed: a pattern matched nothing");
    if (range[0] > done) pieces.push_back(text.substr(done, range[0] - done));
    pieces.push_back(text.substr(range[0], range[1] - range[0]));
    done = from = range[1];
  }
  if (done < text.size()) pieces.push_back(text.substr(done));
  return absl::OkStatus();
}

}  // namespace runahead
