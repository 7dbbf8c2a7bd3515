#include "server/gateway/openai/json_slice.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr int kMaxSliceDepth = 64;
constexpr double kMaxExact = 0x1p53;  // of whole numbers, those that a double holds

// What nlohmann's parser calls while it reads. Nothing is kept; false ends it.
class JsonChecker {
 public:
  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(int64_t) { return true; }
  bool number_unsigned(uint64_t) { return true; }
  bool number_float(double, const std::string&) { return true; }
  bool string(std::string&) { return true; }
  bool binary(std::vector<uint8_t>&) { return true; }
  bool key(std::string&) { return true; }
  bool start_object(size_t) { return Open(); }
  bool start_array(size_t) { return Open(); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) {
    // Not what stands there: messages are logged, and that may be the text of a prompt.
    const bool number = error.id == 406;
    status_ = absl::InvalidArgumentError(
        absl::StrCat(number ? "a number is too large, at byte " : "it is no JSON, at byte ", position));
    return false;
  }

  const absl::Status& status() const { return status_; }

 private:
  bool Open() {
    if (++depth_ <= kMaxSliceDepth) return true;
    status_ = absl::InvalidArgumentError(absl::StrCat("it is nested deeper than ", kMaxSliceDepth));
    return false;
  }

  bool Close() {
    --depth_;
    return true;
  }

  int depth_ = 0;
  absl::Status status_;
};

bool IsJsonSpace(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// What follows walks over text that was checked.
size_t SkipSpace(absl::string_view text, size_t at) {
  while (at < text.size() && IsJsonSpace(text[at])) ++at;
  return at;
}

// Of the string that begins at `at`.
size_t EndOfString(absl::string_view text, size_t at) {
  for (++at; text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at + 1;
}

size_t EndOfValue(absl::string_view text, size_t at) {
  if (text[at] == '"') return EndOfString(text, at);
  if (text[at] != '[' && text[at] != '{') return std::min(text.find_first_of(",]} \t\n\r", at), text.size());
  int depth = 0;
  do {
    const char c = text[at];
    depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    at = c == '"' ? EndOfString(text, at) : at + 1;
  } while (depth > 0);
  return at;
}

// The next element or key of what is open: behind blanks and a comma. The closing bracket ends it.
size_t NextInside(absl::string_view text, size_t at) {
  at = SkipSpace(text, at);
  return text[at] == ',' ? SkipSpace(text, at + 1) : at;
}

std::string DecodeString(absl::string_view quoted) {
  const absl::string_view inside = quoted.substr(1, quoted.size() - 2);
  if (inside.find('\\') == absl::string_view::npos) return std::string(inside);
  return nlohmann::json::parse(quoted.begin(), quoted.end(), nullptr, /*allow_exceptions=*/false).get<std::string>();
}

}  // namespace

absl::StatusOr<JsonSlice> JsonSlice::Check(absl::string_view text) {
  absl::ConsumePrefix(&text, "\xef\xbb\xbf");  // a mark that some editors write, which the parser skips
  JsonChecker checker;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &checker)) return checker.status();
  const size_t begin = SkipSpace(text, 0);
  return JsonSlice(text.substr(begin, EndOfValue(text, begin) - begin));
}

JsonSlice::Kind JsonSlice::kind() const {
  switch (text_[0]) {
    case 'n':
      return Kind::kNull;
    case 't':
    case 'f':
      return Kind::kBool;
    case '"':
      return Kind::kString;
    case '[':
      return Kind::kArray;
    case '{':
      return Kind::kObject;
    default:
      return Kind::kNumber;
  }
}

absl::string_view JsonSlice::KindName() const {
  switch (kind()) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return text_;
    case Kind::kNumber:
      return "a number";
    case Kind::kString:
      return "a string";
    case Kind::kArray:
      return "an array";
    case Kind::kObject:
      return "an object";
  }
  return "";
}

bool JsonSlice::IsEmpty() const {
  const Kind its = kind();
  if (its != Kind::kString && its != Kind::kArray && its != Kind::kObject) return false;
  const absl::string_view inside = text_.substr(1, text_.size() - 2);
  return its == Kind::kString ? inside.empty() : SkipSpace(inside, 0) == inside.size();
}

double JsonSlice::Number() const {
  double number = 0;
  RUNAHEAD_CHECK(absl::SimpleAtod(text_, &number));
  return number;
}

std::string JsonSlice::String() const {
  return DecodeString(text_);
}

std::optional<int64_t> JsonSlice::Integer() const {
  int64_t whole = 0;
  if (absl::SimpleAtoi(text_, &whole)) return whole;
  const double number = Number();
  if (std::floor(number) != number || std::abs(number) > kMaxExact) return std::nullopt;
  return static_cast<int64_t>(number);
}

absl::Status JsonSlice::ForElements(absl::FunctionRef<absl::Status(JsonSlice value)> on_element) const {
  for (size_t at = NextInside(text_, 1); text_[at] != ']'; at = NextInside(text_, at)) {
    const size_t end = EndOfValue(text_, at);
    RUNAHEAD_RETURN_IF_ERROR(on_element(JsonSlice(text_.substr(at, end - at))));
    at = end;
  }
  return absl::OkStatus();
}

absl::Status JsonSlice::ForMembers(absl::FunctionRef<absl::Status(std::string key, JsonSlice value)> on_member) const {
  for (size_t at = NextInside(text_, 1); text_[at] != '}'; at = NextInside(text_, at)) {
    const size_t end_of_key = EndOfString(text_, at);
    std::string key = DecodeString(text_.substr(at, end_of_key - at));
    const size_t begin = SkipSpace(text_, SkipSpace(text_, end_of_key) + 1);  // behind the colon
    const size_t end = EndOfValue(text_, begin);
    RUNAHEAD_RETURN_IF_ERROR(on_member(std::move(key), JsonSlice(text_.substr(begin, end - begin))));
    at = end;
  }
  return absl::OkStatus();
}

}  // namespace runahead
