// UTF-8 that may be broken: walking over it, and putting it together from pieces.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace runahead {

// What stands at the beginning of a text.
struct Utf8Step {
  enum class Kind {
    kCharacter,   // a whole character
    kInvalid,     // bytes that belong to no character: the longest part that could have begun one, or one stray byte
    kIncomplete,  // the text ends inside what may become a character
  };
  Kind kind;
  size_t bytes;  // at least 1
};

// `text` is not empty.
Utf8Step NextUtf8(std::string_view text);

// The longest run at the beginning of a text that is all characters or no character at all.
struct Utf8Run {
  std::string_view text;  // not empty
  bool valid;
};

// `text` is not empty.
Utf8Run FirstUtf8Run(std::string_view text);

// `text` with U+FFFD for every invalid part, as Unicode recommends (one for each longest possible beginning).
std::string ReplaceInvalidUtf8(std::string_view text);

// Turns a stream of byte pieces into a stream of text that never ends inside a character. All that Feed and Finish
// give, joined, is ReplaceInvalidUtf8 of all bytes, however they were cut.
class Utf8Stream {
 public:
  // The text that is complete with `bytes`.
  std::string Feed(std::string_view bytes);
  // U+FFFD when a character was left incomplete, otherwise nothing. The stream is then as new.
  std::string Finish();

 private:
  std::string pending_;  // at most three bytes: the beginning of a character
};

}  // namespace runahead
