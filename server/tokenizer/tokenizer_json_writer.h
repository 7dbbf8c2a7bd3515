// A vocabulary as a Hugging Face tokenizer.json: the inverse of vocabulary_json.cc.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/tokenizer/vocabulary.h"

namespace runahead {

// The text of a tokenizer.json with which the `tokenizers` library makes the same ids and the same text as a Tokenizer
// of `vocabulary`, where special tokens in text are recognised. It has no setting for that: names of control tokens in
// what a user writes always become these tokens. Its Unigram also makes a byte of text that is written like a byte's
// token (<0x41>).
// FAILED_PRECONDITION says what the form or that library has no word for. Time and memory are close to linear in the
// vocabulary: a second for 256,000 tokens.
absl::StatusOr<std::string> TokenizerJson(const Vocabulary& vocabulary);

}  // namespace runahead
