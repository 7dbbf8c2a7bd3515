// The small vocabularies of tests/golden/data/tokenizers, in the forms in which models have them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/gguf_builder.h"

namespace runahead {

// All, and those whose rules GGUF's keys can say.
std::vector<std::string> GoldenVocabularies();
std::vector<std::string> GoldenGgufVocabularies();

// Each throws where the file of `name` is not there: tests run in the repository's root.

// Its tokenizer.json.
std::string GoldenTokenizerJson(const std::string& name);

// The keys of a GGUF file of the same vocabulary: what converters write.
void AddGoldenVocabulary(const std::string& name, GgufBuilder& builder);

// The id of a token by its text. CHECKs that there is one.
uint32_t GoldenTokenId(const std::string& name, const std::string& token);

// The texts that all are compared on.
std::vector<std::string> GoldenTexts();

}  // namespace runahead
