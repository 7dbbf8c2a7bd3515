// A tokenizer of 400 tokens, three of them control tokens.
#pragma once

#include <memory>

#include "kernels/base/status_macros.h"
#include "server/tokenizer/tokenizer.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/parsed_gguf.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead::fuzz {

inline const std::shared_ptr<const Tokenizer>& SmallTokenizer() {
  static const auto& tokenizer = *new std::shared_ptr<const Tokenizer>([] {
    GgufBuilder builder;
    const SyntheticVocabulary vocabulary = MakeSyntheticVocabulary(400);
    builder.AddString("tokenizer.ggml.model", "gpt2");
    builder.AddString("tokenizer.ggml.pre", "smollm");
    builder.AddStrings("tokenizer.ggml.tokens", vocabulary.tokens);
    builder.AddInts("tokenizer.ggml.token_type", vocabulary.types);
    builder.AddStrings("tokenizer.ggml.merges", vocabulary.merges);
    builder.AddUint32("tokenizer.ggml.eos_token_id", kSyntheticImEnd);
    const auto file = ParseGguf(builder.Build());
    RUNAHEAD_CHECK(file.ok());
    const auto made = Tokenizer::FromModel(**file);
    RUNAHEAD_CHECK(made.ok());
    return *made;
  }());
  return tokenizer;
}

}  // namespace runahead::fuzz
