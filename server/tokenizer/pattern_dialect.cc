#include "server/tokenizer/pattern_dialect.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// White space as Unicode has it, inside of a class. PCRE2's own \s counts U+180E, too.
constexpr char kSpaces[] = "\\x09-\\x0d\\x{85}\\p{Z}";

class Translation {
 public:
  explicit Translation(std::string_view pattern) : in_(pattern.data(), pattern.size()) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        RUNAHEAD_RETURN_IF_ERROR(Escape(/*in_class=*/false));
      } else if (c == '[') {
        RUNAHEAD_RETURN_IF_ERROR(Class());
      } else if (c == '(' && At(1) == '?') {
        RUNAHEAD_RETURN_IF_ERROR(Group());
      } else if (c == '}' && At(1) == '+') {
        return Refused("}+");
      } else {
        out_ += c;
        ++at_;
      }
    }
    return out_;
  }

 private:
  char At(size_t ahead) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }

  absl::Status Refused(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("pattern '", in_, "': '", what, "' at ", at_, " is not supported"));
  }

  void Copy(size_t bytes) {
    absl::StrAppend(&out_, in_.substr(at_, bytes));
    at_ += bytes;
  }

  absl::Status Escape(bool in_class) {
    const char c = At(1);
    if (absl::ascii_ispunct(static_cast<unsigned char>(c)) || absl::StrContains("nrtfv", absl::string_view(&c, 1))) {
      Copy(2);
    } else if (c == 's') {
      absl::StrAppend(&out_, in_class ? "" : "[", kSpaces, in_class ? "" : "]");
      at_ += 2;
    } else if (c == 'S' && !in_class) {
      absl::StrAppend(&out_, "[^", kSpaces, "]");
      at_ += 2;
    } else if (c == 'd' || c == 'D') {
      Copy(2);
    } else if (c == 'p' || c == 'P' || c == 'x') {
      if (c == 'x' && At(2) != '{') {
        if (!absl::ascii_isxdigit(At(2)) || !absl::ascii_isxdigit(At(3))) return Refused("\\x");
        // Oniguruma takes bytes from 80 on for parts of a character.
        if (At(2) > '7') return Refused("\\x");
        Copy(4);
        return absl::OkStatus();
      }
      const size_t end = in_.find('}', at_);
      if (At(2) != '{' || end == absl::string_view::npos) return Refused(in_.substr(at_, 2));
      Copy(end + 1 - at_);
    } else if (c == 'u') {
      for (size_t i = 2; i < 6; ++i) {
        if (!absl::ascii_isxdigit(At(i))) return Refused("\\u");
      }
      absl::StrAppend(&out_, "\\x{", in_.substr(at_ + 2, 4), "}");
      at_ += 6;
    } else {
      return Refused(in_.substr(at_, 2));
    }
    return absl::OkStatus();
  }

  // What is between brackets. Oniguruma has classes in classes and && for what both have; PCRE2 does not.
  absl::Status Class() {
    Copy(1);
    if (At(0) == '^') Copy(1);
    if (At(0) == ']') return Refused("]");
    while (At(0) != ']') {
      if (at_ >= in_.size()) return Refused("[");
      if (At(0) == '[') return Refused("[");
      if (At(0) == '&' && At(1) == '&') return Refused("&&");
      if (At(0) == '\\') {
        RUNAHEAD_RETURN_IF_ERROR(Escape(/*in_class=*/true));
      } else {
        Copy(1);
      }
    }
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Group() {
    for (const absl::string_view known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (!absl::StartsWith(in_.substr(at_), known)) continue;
      Copy(known.size());
      return absl::OkStatus();
    }
    return Refused(in_.substr(at_, 3));
  }

  const absl::string_view in_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> PatternForPcre2(std::string_view pattern) {
  constexpr size_t kMaxPatternBytes = 16384;
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pattern has ", pattern.size(), " bytes; at most ", kMaxPatternBytes, " are supported"));
  }
  return Translation(pattern).Run();
}

}  // namespace runahead
