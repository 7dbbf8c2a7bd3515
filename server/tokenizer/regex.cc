#include "server/tokenizer/regex.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace runahead {
namespace {

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct Regex::Compiled {
  std::unique_ptr<pcre2_code, Free> code;
  std::unique_ptr<pcre2_match_context, Free> context;
};

absl::StatusOr<Regex> Regex::Compile(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_shared<Compiled>();
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                     PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
  if (compiled->code == nullptr) {
    return absl::InternalError(absl::StrCat("pattern '", pattern, "' at ", offset, ": ", ErrorText(error)));
  }
  // Where there is no JIT for this machine the interpreter does the same, slower.
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);
  // Trying to end a match at each of many million blanks is a step each, and more than PCRE2 allows unasked.
  compiled->context.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(compiled->context.get(), std::numeric_limits<uint32_t>::max());
  return Regex(std::move(compiled));
}

absl::Status Regex::Split(std::string_view text, OnPiece on_piece) const {
  const std::unique_ptr<pcre2_match_data, Free> match(pcre2_match_data_create(1, nullptr));
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
  size_t done = 0;
  while (done < text.size()) {
    // The text is known to be valid; checking it again for every match would make this quadratic.
    const int found = pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), done,
                                  PCRE2_NO_UTF_CHECK, match.get(), compiled_->context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) return absl::InternalError(absl::StrCat("splitting text failed: ", ErrorText(found)));
    if (range[1] <= done) return absl::InternalError("splitting text failed: a pattern matched nothing");
    if (range[0] > done) RUNAHEAD_RETURN_IF_ERROR(on_piece(text.substr(done, range[0] - done)));
    RUNAHEAD_RETURN_IF_ERROR(on_piece(text.substr(range[0], range[1] - range[0])));
    done = range[1];
  }
  return done < text.size() ? on_piece(text.substr(done)) : absl::OkStatus();
}

}  // namespace runahead
