// A tokenizer whose tokens cut JSON in all ways: every byte, and pieces across quotes, braces and words.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/base/status_macros.h"
#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/vocabulary.h"

namespace runahead {

// Ids of the tokens that are no text.
inline constexpr int32_t kJsonControl = 0;
inline constexpr int32_t kJsonEnd = 1;
inline constexpr int32_t kJsonUnused = 2;
inline constexpr int32_t kJsonFirstByte = 3;  // that of byte 0; the others follow
inline constexpr int32_t kJsonFirstPiece = kJsonFirstByte + 256;

// Has every byte, and behind them `pieces` in their order.
inline std::shared_ptr<const Tokenizer> MakePieceTokenizer(const std::vector<std::string>& pieces) {
  Vocabulary vocabulary;
  vocabulary.tokens = {{"<|begin|>", TokenKind::kControl}, {"<|end|>", TokenKind::kControl}, {"", TokenKind::kUnused}};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.byte_ids[byte] = kJsonFirstByte + byte;
    vocabulary.tokens.push_back({ByteToAlphabet(static_cast<unsigned char>(byte)), TokenKind::kNormal});
  }
  for (const std::string& text : pieces) {
    std::string token;
    for (const char c : text) token += ByteToAlphabet(static_cast<unsigned char>(c));
    vocabulary.tokens.push_back({token, TokenKind::kNormal});
  }
  vocabulary.eos = kJsonEnd;
  vocabulary.ends = {kJsonEnd};
  const auto tokenizer = Tokenizer::FromVocabulary(vocabulary);
  RUNAHEAD_CHECK(tokenizer.ok());
  return *tokenizer;
}

inline std::shared_ptr<const Tokenizer> MakeJsonTokenizer() {
  return MakePieceTokenizer({"{\"",  "\": ",  "\": \"", "\", \"", ", \"",     "\"}",         "}}",   "]}",    "[{\"",
                             "[[",   ", ",    "{}",     "[]",     "true",     "false",       "null", "12",    "-1",
                             "0.",   "00",    "ab",     "abc",    "name",     " a",          "\\\"", "\\u00", "\n\n",
                             "\t\t", "\"a\"", "<t",     ">\n",    "\xe2\x82", "\xe2\x82\xac"});
}

}  // namespace runahead
