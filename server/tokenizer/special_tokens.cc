#include "server/tokenizer/special_tokens.h"

#include "server/tokenizer/unicode.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

// Whether neither the character before `begin` nor the one at `end` is of a word.
bool StandsAlone(std::string_view text, size_t begin, size_t end) {
  const auto is_word = [](std::string_view rest) {
    return NextUtf8(rest).kind == Utf8Step::Kind::kCharacter && IsWordCharacter(FirstCharacter(rest));
  };
  if (end < text.size() && is_word(text.substr(end))) return false;
  if (begin == 0) return true;
  size_t before = begin - 1;
  while (before > 0 && begin - before < 4 && (static_cast<unsigned char>(text[before]) & 0xc0) == 0x80) --before;
  return !is_word(text.substr(before, begin - before));
}

}  // namespace

void SpecialTokens::Add(const NamedToken& token) {
  if (token.name.empty()) return;
  names_.Add(token.name, static_cast<int32_t>(tokens_.size()));
  begins_[static_cast<unsigned char>(token.name[0])] = true;
  tokens_.push_back(token);
}

std::optional<SpecialTokens::Match> SpecialTokens::Find(std::string_view text, size_t from, bool with_control) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
    std::optional<Match> longest;
    names_.ForPrefixes(text.substr(begin), [&](size_t bytes, int32_t index) {
      const NamedToken& token = tokens_[static_cast<size_t>(index)];
      if (with_control || !token.control) longest = Match{begin, bytes, &token};
    });
    if (!longest) continue;
    if (!longest->token->single_word || StandsAlone(text, begin, begin + longest->bytes)) return longest;
    begin += longest->bytes - 1;
  }
  return std::nullopt;
}

}  // namespace runahead
