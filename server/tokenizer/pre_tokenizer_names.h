// The pre-tokenizers that GGUF files know by name (tokenizer.ggml.pre), and the patterns that many models have.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/tokenizer/normalizer.h"
#include "server/tokenizer/pre_tokenizer.h"

namespace runahead {

// GPT-2's: contractions, words, numbers and punctuation with the blank before them, blanks.
inline constexpr char kGpt2Pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// ASCII's punctuation and Unicode's.
inline constexpr char kPunctuation[] = "[\\p{P}$+<=>^`|~]";

// What a name stands for.
struct NamedPreTokenizer {
  std::vector<NormalizerStep> normalizer;
  std::vector<SplitRule> splits;
  bool whole_words_first = false;
  bool adds_bos = false;  // where the file does not say
};

// INVALID_ARGUMENT names an unknown rule and those that are known.
absl::StatusOr<NamedPreTokenizer> FindPreTokenizer(std::string_view name);

}  // namespace runahead
