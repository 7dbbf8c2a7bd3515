// Finding the tokens that stand in a text by their own names, such as <|im_end|>.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/tokenizer/byte_trie.h"

namespace runahead {

// A token that is found in the text by its name, before the text is cut into words.
struct NamedToken {
  std::string name;
  int32_t id = 0;
  bool control = false;      // steers the model and is no text; else it is text that is always this token
  bool strip_left = false;   // takes the white space before it
  bool strip_right = false;  // takes the white space behind it
  bool single_word = false;  // only where no letter or digit is beside it
  bool normalized = false;   // looked for in the normalised text, not in the text as it came
};

// A set of names. Immutable once filled; thread-safe then.
class SpecialTokens {
 public:
  // An empty name is never found; of two equal ones the first counts.
  void Add(const NamedToken& token);

  struct Match {
    size_t begin;
    size_t bytes;
    const NamedToken* token;  // lives as long as the set
  };

  // The first name in `text` from `from` on; the longest, where several begin at the same place. Control tokens only
  // where `with_control`. White space that it takes is not counted.
  std::optional<Match> Find(std::string_view text, size_t from, bool with_control) const;

 private:
  std::vector<NamedToken> tokens_;
  ByteTrie names_;                     // to indices into tokens_
  std::array<bool, 256> begins_ = {};  // by byte: some name begins with it
};

}  // namespace runahead
