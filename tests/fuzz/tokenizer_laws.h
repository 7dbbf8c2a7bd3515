// What every tokenizer does with every text.
#pragma once

#include <memory>
#include <string_view>

#include "server/tokenizer/tokenizer.h"

namespace runahead::fuzz {

// Encodes `text` and takes the ids apart again: they are ids of the vocabulary, no fewer than LeastTokens says, the
// same in parts as in one, and the same text token by token as all at once. `exact`: every byte has a token and nothing
// normalises, so that the text comes back, and no control token is in what is not asked for one.
void CheckTokenizer(const std::shared_ptr<const Tokenizer>& tokenizer, std::string_view text, bool exact);

}  // namespace runahead::fuzz
