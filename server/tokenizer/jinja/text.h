// Strings of a template, which know of each byte whether it came from the template or from whoever called.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "server/tokenizer/tokenizer.h"

namespace runahead::jinja {

// absl::StrCat, which does not know std::string_view where Abseil was built for C++14.
template <typename... Parts>
std::string Cat(const Parts&... parts) {
  const auto piece = []<typename T>(const T& part) -> decltype(auto) {
    if constexpr (std::is_same_v<T, std::string_view>) {
      return absl::string_view(part.data(), part.size());
    } else {
      return static_cast<const T&>(part);
    }
  };
  return absl::StrCat(piece(parts)...);
}

// UTF-8; what is none breaks nothing. Positions and sizes are in bytes.
class Text {
 public:
  Text() = default;
  // `own`: the template's, hence control tokens may be in it.
  Text(std::string_view bytes, bool own) : bytes_(bytes), marks_(bytes.size(), own ? 1 : 0) {}

  std::string_view view() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  void Append(const Text& other);
  void Append(const Text& other, size_t from, size_t size);
  void Append(std::string_view bytes, bool own);
  Text Cut(size_t from, size_t size) const;
  // Other bytes, as many, with the same marks.
  Text With(std::string bytes) const;

  // Neighbours of one origin are one part: a control token that the template puts together is found.
  std::vector<TextPart> Parts() const;

 private:
  std::string bytes_;
  std::string marks_;  // 1 for each byte that is the template's, else 0
};

// Python's idea of white space: Unicode's, and four separators of ASCII.
bool IsSpace(char32_t c);
// The character at `at`, and its bytes; a byte that begins none is itself.
char32_t CharAt(std::string_view text, size_t at, size_t* bytes);
size_t CountChars(std::string_view text);
// Where the character `index` begins, or the text's end.
size_t OffsetOfChar(std::string_view text, size_t index);

// Without white space, or the characters of `chars`, at the ends that are named.
Text Strip(const Text& text, std::optional<std::string_view> chars, bool left, bool right);
// Linear in both. npos where there is none.
size_t Find(std::string_view text, std::string_view part, size_t from);
// One character to one; of those that become two, only the German sharp s does.
Text ToCase(const Text& text, bool upper);
// Hands over each line of `text`, as Python's splitlines has them, until it gets false.
void ForLines(const Text& text, bool keep_ends, absl::FunctionRef<bool(Text line)> use);

}  // namespace runahead::jinja
