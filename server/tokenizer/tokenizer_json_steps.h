// The steps around the model as a tokenizer.json has them: what vocabulary_json_steps.h reads.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/tokenizer/vocabulary.h"

namespace runahead {

// Each gives the value of the member of that name; "null" where the vocabulary has no such step. FAILED_PRECONDITION
// says what a tokenizer.json has no word for.
std::string NormalizerJson(const Vocabulary& vocabulary);
absl::StatusOr<std::string> PreTokenizerJson(const Vocabulary& vocabulary);
absl::StatusOr<std::string> DecoderJson(const Vocabulary& vocabulary);

// Puts BOS, called `bos`, before each text where the vocabulary does.
std::string PostProcessorJson(const Vocabulary& vocabulary, const std::string& bos);

// `text` as JSON, in quotes; U+FFFD stands for what is no UTF-8.
std::string InJsonQuotes(const std::string& text);

}  // namespace runahead
