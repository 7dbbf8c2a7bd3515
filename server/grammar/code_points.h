// Sets of Unicode characters, as classes of regular expressions have them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace runahead {

inline constexpr char32_t kLastCodePoint = 0x10FFFF;

class CodePoints {
 public:
  void Add(char32_t first, char32_t last);  // first <= last
  void Add(const CodePoints& others);
  void Remove(const CodePoints& others);
  void Invert();
  bool empty() const { return ranges_.empty(); }

  // As a class of an expression, of printable ASCII. Not of an empty set.
  std::string AsClass() const;

 private:
  struct Range {
    char32_t first;
    char32_t last;
  };
  void Merge();

  std::vector<Range> ranges_;  // rising, apart from each other
};

// A character as it stands in an expression, and in a class; printable ASCII.
std::string EscapedCharacter(char32_t character);
std::string EscapedInClass(char32_t character);

}  // namespace runahead
