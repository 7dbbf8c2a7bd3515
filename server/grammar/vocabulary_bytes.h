// A model's vocabulary as grammars see it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/tokenizer/tokenizer.h"

namespace runahead {

// The bytes that each id stands for; empty for what no text is made of, and so is never allowed: control tokens, ids
// without a token, and those beyond the tokenizer's up to `size`.
std::vector<std::string> VocabularyBytes(const Tokenizer& tokenizer, int64_t size);

// As they are for JSON on one line: without tokens that have control characters but for line breaks, which may stand
// around it. Where the length of a text is bounded, xgrammar 0.2.8 would let them into it.
std::vector<std::string> JsonVocabularyBytes(std::vector<std::string> bytes);

}  // namespace runahead
