// A tokenizer whose first tokens are the letters a to z, each by itself; then comes one that ends an answer.
#pragma once

#include <memory>
#include <string>

#include "kernels/base/status_macros.h"
#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/vocabulary.h"

namespace runahead::testing {

inline constexpr int32_t kLetters = 26;
inline constexpr int32_t kLettersEnd = kLetters;

inline std::shared_ptr<const Tokenizer> MakeLetterTokenizer() {
  Vocabulary vocabulary;
  vocabulary.byte_ids.fill(-1);
  for (int32_t id = 0; id < kLetters; ++id) {
    vocabulary.tokens.push_back({std::string(1, static_cast<char>('a' + id)), TokenKind::kNormal});
    vocabulary.byte_ids['a' + id] = id;
  }
  vocabulary.tokens.push_back({"<|end|>", TokenKind::kControl});
  vocabulary.eos = kLettersEnd;
  vocabulary.ends = {kLettersEnd};
  const auto tokenizer = Tokenizer::FromVocabulary(vocabulary);
  RUNAHEAD_CHECK(tokenizer.ok());
  return *tokenizer;
}

}  // namespace runahead::testing
