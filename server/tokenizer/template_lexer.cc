#include "server/tokenizer/template_lexer.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr std::string_view kBlanks = " \t\n\r";

bool IsNamePart(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

absl::Status Unreadable(std::string_view where) {
  constexpr size_t kShown = 60;
  return absl::InvalidArgumentError(absl::StrCat("it cannot be read at `", std::string(where.substr(0, kShown)), "`"));
}

// The string literal at the beginning of `rest`, which is cut behind it.
absl::StatusOr<std::string> TakeString(std::string_view& rest) {
  const std::string_view whole = rest;
  const char quote = rest[0];
  std::string value;
  for (size_t i = 1; i < rest.size(); ++i) {
    char c = rest[i];
    if (c == quote) {
      rest.remove_prefix(i + 1);
      return value;
    }
    if (c == '\\' && i + 1 < rest.size()) {
      c = rest[++i];
      if (c == 'n')
        c = '\n';
      else if (c == 't')
        c = '\t';
      else if (c == 'r')
        c = '\r';
      else if (c != '\\' && c != '\'' && c != '"')
        return Unreadable(whole);
    }
    value += c;
  }
  return Unreadable(whole);
}

// Adds [0], ['role'] or .role at the beginning of `rest` to the name. False when there is none.
absl::StatusOr<bool> TakeMember(std::string_view& rest, std::string& name) {
  std::string_view after = rest;
  std::string member;
  if (after.substr(0, 1) == ".") {
    after.remove_prefix(1);
  } else if (after.substr(0, 2) == "['" || after.substr(0, 2) == "[\"") {
    after.remove_prefix(1);
    RUNAHEAD_ASSIGN_OR_RETURN(member, TakeString(after));
    if (after.substr(0, 1) != "]") return Unreadable(rest);
    after.remove_prefix(1);
    absl::StrAppend(&name, ".", member);
    rest = after;
    return true;
  } else if (after.substr(0, 1) == "[") {
    after.remove_prefix(1);
  } else {
    return false;
  }
  size_t length = 0;
  while (length < after.size() && IsNamePart(after[length])) ++length;
  if (length == 0) return Unreadable(rest);
  absl::StrAppend(&name, ".", std::string(after.substr(0, length)));
  after.remove_prefix(length);
  if (rest[0] == '[') {
    if (after.substr(0, 1) != "]") return Unreadable(rest);
    after.remove_prefix(1);
  }
  rest = after;
  return true;
}

absl::StatusOr<std::vector<TemplateWord>> LexWords(std::string_view rest) {
  std::vector<TemplateWord> words;
  while (true) {
    rest.remove_prefix(std::min(rest.find_first_not_of(kBlanks), rest.size()));
    if (rest.empty()) return words;
    if (rest[0] == '\'' || rest[0] == '"') {
      RUNAHEAD_ASSIGN_OR_RETURN(std::string value, TakeString(rest));
      words.push_back({TemplateWord::Kind::kString, std::move(value)});
    } else if (IsNamePart(rest[0])) {
      size_t length = 0;
      while (length < rest.size() && IsNamePart(rest[length])) ++length;
      std::string name(rest.substr(0, length));
      rest.remove_prefix(length);
      for (bool more = true; more;) {
        RUNAHEAD_ASSIGN_OR_RETURN(more, TakeMember(rest, name));
      }
      words.push_back({TemplateWord::Kind::kName, std::move(name)});
    } else {
      const size_t length = rest.substr(0, 2) == "==" || rest.substr(0, 2) == "!=" ? 2 : 1;
      words.push_back({TemplateWord::Kind::kSymbol, std::string(rest.substr(0, length))});
      rest.remove_prefix(length);
    }
  }
}

// Where the tag that begins `rest` ends, behind `closing`; strings may contain anything.
absl::StatusOr<size_t> EndOfTag(std::string_view rest, std::string_view closing) {
  const bool comment = closing == "#}";
  char quote = 0;
  for (size_t i = 2; i + 1 < rest.size(); ++i) {
    if (quote != 0) {
      if (rest[i] == '\\')
        ++i;
      else if (rest[i] == quote)
        quote = 0;
    } else if (rest.substr(i, 2) == closing) {
      return i + 2;
    } else if (!comment && (rest[i] == '\'' || rest[i] == '"')) {
      quote = rest[i];
    }
  }
  return Unreadable(rest);
}

void AddText(std::string_view text, std::vector<TemplateNode>& nodes) {
  if (!text.empty()) nodes.push_back({TemplateNode::Kind::kText, std::string(text), {}});
}

// Raw text before a tag: `-` trims it; otherwise blanks between a line's beginning and a statement go.
std::string_view TrimBefore(std::string_view text, std::string_view tag, bool at_line_start) {
  if (tag[2] == '-') return text.substr(0, text.find_last_not_of(kBlanks) + 1);
  if (tag[1] == '{') return text;
  const size_t kept = text.find_last_not_of(" \t") + 1;
  return kept == 0 ? (at_line_start ? std::string_view() : text) : text[kept - 1] == '\n' ? text.substr(0, kept) : text;
}

}  // namespace

absl::StatusOr<std::vector<TemplateNode>> LexTemplate(std::string_view source) {
  std::vector<TemplateNode> nodes;
  if (!source.empty() && source.back() == '\n') source.remove_suffix(1);
  bool line_start = true;  // the text that follows begins a line of the template
  while (!source.empty()) {
    size_t begin = source.find('{');
    while (begin != std::string_view::npos && begin + 1 < source.size() &&
           std::string_view("{%#").find(source[begin + 1]) == std::string_view::npos) {
      begin = source.find('{', begin + 1);
    }
    if (begin == std::string_view::npos || begin + 1 == source.size()) {
      AddText(source, nodes);
      break;
    }
    const std::string_view rest = source.substr(begin);
    const char kind = rest[1];
    const std::string closing = {kind == '{' ? '}' : kind, '}'};
    RUNAHEAD_ASSIGN_OR_RETURN(const size_t length, EndOfTag(rest, closing));
    const std::string_view tag = rest.substr(0, length);
    AddText(TrimBefore(source.substr(0, begin), tag, line_start), nodes);

    std::string_view inner = tag.substr(2, length - 4);
    const bool trim_after = !inner.empty() && inner.back() == '-';
    if (!inner.empty() && inner.front() == '-') inner.remove_prefix(1);
    if (!inner.empty() && trim_after) inner.remove_suffix(1);
    if (kind != '#') {
      RUNAHEAD_ASSIGN_OR_RETURN(std::vector<TemplateWord> words, LexWords(inner));
      nodes.push_back({kind == '{' ? TemplateNode::Kind::kOutput : TemplateNode::Kind::kStatement, std::string(tag),
                       std::move(words)});
    }
    source.remove_prefix(begin + length);
    line_start = false;
    if (trim_after) {
      source.remove_prefix(std::min(source.find_first_not_of(kBlanks), source.size()));
    } else if (kind != '{' && source.substr(0, 1) == "\n") {
      source.remove_prefix(1);
      line_start = true;
    }
  }
  return nodes;
}

}  // namespace runahead
