// The files beside a tokenizer.json, for models whose file has none of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace runahead {

// What is known of a model beside its vocabulary. All text is UTF-8; what is not becomes U+FFFD.
struct TokenizerFacts {
  std::vector<std::pair<std::string, std::string>> tokens = {};  // by transformers' names for them: bos_token, ...
  std::optional<std::string> chat_template = {};
  std::string model_type = {};          // the family; empty: not known
  bool adds_bos = false;                // before each text
  std::optional<int64_t> context = {};  // in tokens
  std::optional<int64_t> rows = {};     // of the table of tokens: the model knows ids below
  std::optional<int32_t> bos = {};
  std::vector<int32_t> ends = {};  // tokens that end an answer
};

// The text of a tokenizer_config.json.
std::string TokenizerConfigJson(const TokenizerFacts& facts);

// The text of a config.json that has only these; it does not say what the model's weights are like.
std::string ModelConfigJson(const TokenizerFacts& facts);

}  // namespace runahead
