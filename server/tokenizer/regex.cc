#include "server/tokenizer/regex.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/pattern_dialect.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace runahead {
namespace {

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

// Trying to end a match at each of many million blanks is a step each, and more than PCRE2 allows unasked. A pattern
// that takes many more for each byte is one that would never end.
constexpr uint64_t kMaxStepsForEachByte = 32;
constexpr uint64_t kMaxStepsOfShortText = 1 << 20;
constexpr uint32_t kMaxHeapKib = 256 << 10;

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct Regex::Compiled {
  std::unique_ptr<pcre2_code, Free> code;
};

absl::StatusOr<Regex> Regex::Compile(const std::string& pattern) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string translated, PatternForPcre2(pattern));
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_shared<Compiled>();
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, nullptr));
  if (compiled->code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("pattern '", pattern, "': ", ErrorText(error)));
  }
  uint32_t may_be_empty = 0;
  pcre2_pattern_info(compiled->code.get(), PCRE2_INFO_MATCHEMPTY, &may_be_empty);
  if (may_be_empty != 0) return absl::InvalidArgumentError(absl::StrCat("pattern '", pattern, "' can match nothing"));
  // Where there is no JIT for this machine the interpreter does the same, slower.
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);
  return Regex(std::move(compiled));
}

std::string Regex::Quoted(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (absl::ascii_ispunct(static_cast<unsigned char>(c))) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

absl::Status Regex::Split(std::string_view text, OnPiece on_piece) const {
  const std::unique_ptr<pcre2_match_data, Free> match(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, Free> context(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(std::min<uint64_t>(
                                           kMaxStepsOfShortText + kMaxStepsForEachByte * text.size(), UINT32_MAX)));
  pcre2_set_heap_limit(context.get(), kMaxHeapKib);
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
  const auto find = [&](size_t from, uint32_t options) {
    // The text is known to be valid; checking it again for every match would make this quadratic.
    return pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, match.get(), context.get());
  };
  size_t done = 0;
  while (done < text.size()) {
    int found = find(done, 0);
    // The JIT's stack is a small one; the interpreter's is the heap.
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = find(done, PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) return absl::InternalError(absl::StrCat("splitting text failed: ", ErrorText(found)));
    if (range[1] <= done) return absl::InternalError("splitting text failed: a pattern matched nothing");
    if (range[0] > done) RUNAHEAD_RETURN_IF_ERROR(on_piece(text.substr(done, range[0] - done), false));
    RUNAHEAD_RETURN_IF_ERROR(on_piece(text.substr(range[0], range[1] - range[0]), true));
    done = range[1];
  }
  return done < text.size() ? on_piece(text.substr(done), false) : absl::OkStatus();
}

}  // namespace runahead
