#include "server/grammar/vocabulary_bytes.h"

#include <algorithm>
#include <string_view>

namespace runahead {

std::vector<std::string> VocabularyBytes(const Tokenizer& tokenizer, int64_t size) {
  std::vector<std::string> bytes(size);
  for (int64_t id = 0; id < std::min(size, tokenizer.vocab_size()); ++id) {
    const auto token = static_cast<int32_t>(id);
    if (!tokenizer.IsSpecial(token)) bytes[id] = tokenizer.TokenBytes(token);
  }
  return bytes;
}

std::vector<std::string> JsonVocabularyBytes(std::vector<std::string> bytes) {
  for (std::string& token : bytes) {
    const bool controls = std::any_of(token.begin(), token.end(), [](char c) {
      return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r';
    });
    if (controls) token.clear();
  }
  return bytes;
}

}  // namespace runahead
