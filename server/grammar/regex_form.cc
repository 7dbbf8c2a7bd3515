#include "server/grammar/regex_form.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/grammar/code_points.h"
#include "server/grammar/compile_cost.h"
#include "server/grammar/structure_spec.h"
#include "server/tokenizer/unicode.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

CodePoints Digits() {
  CodePoints set;
  set.Add('0', '9');
  return set;
}

CodePoints WordCharacters() {
  CodePoints set = Digits();
  set.Add('A', 'Z');
  set.Add('a', 'z');
  set.Add('_', '_');
  return set;
}

// As ECMAScript has them.
CodePoints Blanks() {
  CodePoints set;
  for (const char32_t c :
       {U' ', U'\u00a0', U'\u1680', U'\u2028', U'\u2029', U'\u202f', U'\u205f', U'\u3000', U'\ufeff'}) {
    set.Add(c, c);
  }
  set.Add('\t', '\r');
  set.Add(0x2000, 0x200A);
  return set;
}

CodePoints LineBreaks() {
  CodePoints set;
  for (const char32_t c : {U'\n', U'\r', U'\u2028', U'\u2029'}) set.Add(c, c);
  return set;
}

// What stands between the quotes of a JSON string by an escape only.
CodePoints EscapedInJson() {
  CodePoints set;
  set.Add(0, 0x1F);
  set.Add('"', '"');
  set.Add('\\', '\\');
  return set;
}

CodePoints Inverse(CodePoints set) {
  set.Invert();
  return set;
}

class RegexReader {
 public:
  RegexReader(std::u32string_view regex, RegexText text) : regex_(regex), in_json_(text == RegexText::kJsonString) {}

  absl::StatusOr<RegexForm> Read() {
    RUNAHEAD_ASSIGN_OR_RETURN(RegexForm form, Alternatives(0));
    if (at_ < regex_.size()) return Refuse("a ) without its (");
    return form;
  }

 private:
  absl::Status Refuse(absl::string_view why) const {
    return absl::InvalidArgumentError(absl::StrCat("at character ", std::min(at_, regex_.size()) + 1, ": ", why));
  }
  bool Has(char32_t c) const { return at_ < regex_.size() && regex_[at_] == c; }
  bool Take(char32_t c) {
    if (!Has(c)) return false;
    ++at_;
    return true;
  }

  absl::StatusOr<RegexForm> Alternatives(int depth) {
    RUNAHEAD_ASSIGN_OR_RETURN(RegexForm form, Sequence(depth));
    while (Take('|')) {
      RUNAHEAD_ASSIGN_OR_RETURN(const RegexForm next, Sequence(depth));
      form.text += "|" + next.text;
      form.written += std::max<int64_t>(next.written, 1);
    }
    return form;
  }

  absl::StatusOr<RegexForm> Sequence(int depth) {
    RegexForm form;
    bool first = true;
    while (at_ < regex_.size() && !Has('|') && !Has(')')) {
      if (Has('^') || Has('$')) {
        RUNAHEAD_RETURN_IF_ERROR(Anchor(depth, first));
        continue;
      }
      first = false;
      RUNAHEAD_ASSIGN_OR_RETURN(RegexForm atom, Atom(depth));
      RUNAHEAD_RETURN_IF_ERROR(Repetition(atom));
      form.text += atom.text;
      form.written += atom.written;
      if (form.written > kMaxWrittenOut) {
        return Refuse(absl::StrCat("with all counts written out, the expression is longer than ", kMaxWrittenOut));
      }
    }
    return form;
  }

  // The whole text is matched in any case.
  absl::Status Anchor(int depth, bool first) {
    const bool begins = Has('^');
    ++at_;
    const bool last = at_ == regex_.size() || Has('|');
    if (depth == 0 && (begins ? first : last)) return absl::OkStatus();
    --at_;
    return Refuse("^ and $ are supported at the ends of the expression only");
  }

  absl::StatusOr<RegexForm> Atom(int depth) {
    const char32_t c = regex_[at_];
    switch (c) {
      case '(':
        return Group(depth);
      case '[':
        return Class();
      case '.':
        ++at_;
        return OneOf(Inverse(LineBreaks()));
      case '\\': {
        RUNAHEAD_ASSIGN_OR_RETURN(const CodePoints set, Escape(/*in_class=*/false));
        return OneOf(set);
      }
      case '*':
      case '+':
      case '?':
        return Refuse("there is nothing to repeat");
      case '{':
        return Refuse("there is nothing to repeat; the character is written \\{");
      default:
        break;
    }
    ++at_;
    return OneOf(Single(c));
  }

  static CodePoints Single(char32_t c) {
    CodePoints set;
    set.Add(c, c);
    return set;
  }

  absl::StatusOr<RegexForm> OneOf(CodePoints set) {
    if (in_json_) set.Remove(EscapedInJson());
    if (!set.empty()) return RegexForm{set.AsClass(), 1};
    --at_;
    return Refuse(
        in_json_
            ? "no character is left: in a JSON string, quotes, backslashes and control characters are not supported"
            : "the class has no characters");
  }

  absl::StatusOr<RegexForm> Group(int depth) {
    if (depth == kMaxStructureDepth) {
      return Refuse(absl::StrCat("groups are deeper than ", kMaxStructureDepth));
    }
    ++at_;
    if (Has('?')) RUNAHEAD_RETURN_IF_ERROR(GroupKind());
    RUNAHEAD_ASSIGN_OR_RETURN(RegexForm form, Alternatives(depth + 1));
    if (!Take(')')) return Refuse("a ( without its )");
    form.text = absl::StrCat("(", form.text, ")");
    return form;
  }

  absl::Status GroupKind() {
    ++at_;
    if (Take(':')) return absl::OkStatus();
    if (Has('<') && at_ + 1 < regex_.size() && regex_[at_ + 1] != '=' && regex_[at_ + 1] != '!') {
      const size_t end = regex_.find(U'>', at_);
      if (end != std::u32string_view::npos) {
        at_ = end + 1;
        return absl::OkStatus();
      }
    }
    return Refuse("of groups with (? only (?: and (?<name> are supported, no looking ahead or behind and no flags");
  }

  absl::StatusOr<RegexForm> Class() {
    ++at_;
    const bool inverted = Take('^');
    CodePoints set;
    while (!Has(']')) {
      if (at_ >= regex_.size()) return Refuse("a [ without its ]");
      RUNAHEAD_RETURN_IF_ERROR(ClassPart(set));
    }
    ++at_;
    if (inverted) set.Invert();
    return OneOf(set);
  }

  absl::Status ClassPart(CodePoints& set) {
    RUNAHEAD_ASSIGN_OR_RETURN(const CodePoints first, ClassItem());
    if (!single_ || !Has('-') || at_ + 1 >= regex_.size() || regex_[at_ + 1] == ']') {
      set.Add(first);
      return absl::OkStatus();
    }
    const char32_t begin = *single_;
    ++at_;
    RUNAHEAD_ASSIGN_OR_RETURN(const CodePoints last, ClassItem());
    if (!single_ || *single_ < begin) return Refuse("a range of characters ends before it begins");
    set.Add(begin, *single_);
    return absl::OkStatus();
  }

  // `single_`: the character, where it is one.
  absl::StatusOr<CodePoints> ClassItem() {
    if (Has('\\')) return Escape(/*in_class=*/true);
    if (at_ >= regex_.size()) return Refuse("a [ without its ]");
    single_ = regex_[at_++];
    return Single(*single_);
  }

  absl::StatusOr<CodePoints> Escape(bool in_class) {
    ++at_;
    if (at_ >= regex_.size()) return Refuse("a \\ with nothing behind it");
    single_.reset();
    const char32_t c = regex_[at_++];
    switch (c) {
      case 'd':
        return Digits();
      case 'D':
        return Inverse(Digits());
      case 'w':
        return WordCharacters();
      case 'W':
        return Inverse(WordCharacters());
      case 's':
        return Blanks();
      case 'S':
        return Inverse(Blanks());
      default:
        break;
    }
    RUNAHEAD_ASSIGN_OR_RETURN(const char32_t character, NamedCharacter(c, in_class));
    single_ = character;
    return Single(character);
  }

  absl::StatusOr<char32_t> NamedCharacter(char32_t c, bool in_class) {
    constexpr std::pair<char32_t, char32_t> kControl[] = {
        {'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {'f', '\f'}, {'v', '\v'}};
    for (const auto& [name, control] : kControl) {
      if (c == name) return control;
    }
    if (c == 'x') return Hexadecimal(2);
    if (c == 'u') return Take('{') ? BracedHexadecimal() : Hexadecimal(4);
    if (in_class && c == 'b') return U'\b';
    const bool letter = c < 0x80 && absl::ascii_isalnum(static_cast<unsigned char>(c));
    if (!letter) return c;
    --at_;
    return Refuse("this escape is not supported: no references back, no \\b and no \\p");
  }

  absl::StatusOr<char32_t> Hexadecimal(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const std::optional<char32_t> digit = HexadecimalDigit();
      if (!digit) return Refuse(absl::StrCat(digits, " hexadecimal digits are wanted"));
      value = value * 16 + *digit;
    }
    return value;
  }

  absl::StatusOr<char32_t> BracedHexadecimal() {
    char32_t value = 0;
    int digits = 0;
    for (; digits < 6; ++digits, ++at_) {
      const std::optional<char32_t> digit = HexadecimalDigit();
      if (!digit) break;
      value = value * 16 + *digit;
    }
    if (digits == 0 || value > kLastCodePoint || !Take('}')) return Refuse("\\u{} wants a character's number");
    return value;
  }

  std::optional<char32_t> HexadecimalDigit() const {
    if (at_ >= regex_.size() || regex_[at_] >= 0x80) return std::nullopt;
    const char c = static_cast<char>(regex_[at_]);
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return std::nullopt;
    return absl::ascii_isdigit(static_cast<unsigned char>(c))
               ? c - '0'
               : absl::ascii_tolower(static_cast<unsigned char>(c)) - 'a' + 10;
  }

  absl::Status Repetition(RegexForm& atom) {
    if (Has('*') || Has('+') || Has('?')) {
      atom.text += static_cast<char>(regex_[at_++]);
    } else if (Take('{')) {
      RUNAHEAD_RETURN_IF_ERROR(Counts(atom));
    } else {
      return absl::OkStatus();
    }
    Take('?');  // the shortest match: the same texts
    if (Has('*') || Has('+') || Has('?') || Has('{')) return Refuse("a repetition of a repetition wants a group");
    return absl::OkStatus();
  }

  absl::Status Counts(RegexForm& atom) {
    RUNAHEAD_ASSIGN_OR_RETURN(const int64_t least, Count());
    int64_t most = least;
    bool open = false;
    if (Take(',')) {
      open = Has('}');
      if (!open) {
        RUNAHEAD_ASSIGN_OR_RETURN(most, Count());
      }
    }
    if (!Take('}')) return Refuse("a repetition is {n}, {n,} or {n,m}; the character is written \\{");
    if (most < least) return Refuse("a repetition's second number is less than its first");
    // xgrammar takes {n,} for more than it is where what is repeated may end in several ways.
    const std::string counted = absl::StrCat(atom.text, "{", least, ",", most, "}");
    if (!open) {
      atom.text = counted;
    } else if (least <= 1) {
      atom.text += least == 0 ? "*" : "+";
    } else {
      atom.text = absl::StrCat(counted, atom.text, "*");
    }
    atom.written *= std::max<int64_t>(open ? least + 1 : 2 * most - least, 1);
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Count() {
    int64_t count = 0;
    const size_t begin = at_;
    for (; at_ < regex_.size() && regex_[at_] >= '0' && regex_[at_] <= '9'; ++at_) {
      count = count * 10 + static_cast<int64_t>(regex_[at_] - '0');
      if (count > kMaxCount) return Refuse(absl::StrCat("a repetition's number is more than ", kMaxCount));
    }
    if (at_ == begin) return Refuse("a repetition is {n}, {n,} or {n,m}; the character is written \\{");
    return count;
  }

  const std::u32string_view regex_;
  const bool in_json_;
  size_t at_ = 0;
  std::optional<char32_t> single_;
};

}  // namespace

absl::StatusOr<RegexForm> ReadRegex(std::string_view regex, RegexText text) {
  std::u32string characters;
  while (!regex.empty()) {
    const Utf8Step step = NextUtf8(regex);
    if (step.kind != Utf8Step::Kind::kCharacter) return absl::InvalidArgumentError("it is no UTF-8");
    characters.push_back(static_cast<char32_t>(FirstCharacter(regex.substr(0, step.bytes))));
    regex.remove_prefix(step.bytes);
  }
  return RegexReader(characters, text).Read();
}

}  // namespace runahead
