#include "server/tokenizer/pre_tokenizer_names.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

using Matches = SplitRule::Matches;

// GPT-4's and its followers': contractions in any case, one character of anything before a word, numbers cut by
// `NUMBER`, line ends kept together with what is before them.
#define GPT4_WITH_NUMBER(NUMBER)                                       \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" NUMBER \
  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
constexpr char kLlama3[] = GPT4_WITH_NUMBER("\\p{N}{1,3}");
constexpr char kQwen2[] = GPT4_WITH_NUMBER("\\p{N}");
#undef GPT4_WITH_NUMBER
// Mistral's later ones: words end where lower case does, numbers are single digits, and there are no contractions.
constexpr char kTekken[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

enum class Splits { kGpt2, kDigitsGpt2, kFalcon, kLlama3, kQwen2, kTekken };

std::vector<SplitRule> RulesOf(Splits splits) {
  switch (splits) {
    case Splits::kGpt2:
      return {{kGpt2Pattern}};
    case Splits::kDigitsGpt2:
      return {{"\\p{N}"}, {kGpt2Pattern}};
    case Splits::kFalcon:
      // Its tokenizer.json cuts what is left in the byte alphabet, where some bytes look like digits.
      return {{kPunctuation, Matches::kContiguous},
              {kGpt2Pattern},
              {"\\p{N}", Matches::kContiguous, false, /*over_alphabet=*/true},
              {"[0-9][0-9][0-9]", Matches::kIsolated, false, /*over_alphabet=*/true}};
    case Splits::kLlama3:
      return {{kLlama3}};
    case Splits::kQwen2:
      return {{kQwen2}};
    case Splits::kTekken:
      return {{kTekken}};
  }
  return {};
}

struct Name {
  const char* name;
  Splits splits;
  bool nfc = false;
  bool whole_words_first = false;
  bool adds_bos = false;
};

constexpr Name kNames[] = {
    {"smollm", Splits::kDigitsGpt2},
    {"starcoder", Splits::kDigitsGpt2},
    {"refact", Splits::kDigitsGpt2},
    {"gpt-2", Splits::kGpt2},
    {"phi-2", Splits::kGpt2},
    {"default", Splits::kGpt2},
    {"falcon", Splits::kFalcon},
    {"llama-bpe", Splits::kLlama3, false, true, true},
    {"llama3", Splits::kLlama3, false, true, true},
    {"llama-v3", Splits::kLlama3, false, true, true},
    {"falcon3", Splits::kLlama3, false, true, true},
    {"tekken", Splits::kTekken, false, true, true},
    {"dbrx", Splits::kLlama3},
    {"smaug-bpe", Splits::kLlama3},
    {"qwen2", Splits::kQwen2, true},
    {"deepseek-r1-qwen", Splits::kQwen2, true, false, true},
};

}  // namespace

absl::StatusOr<NamedPreTokenizer> FindPreTokenizer(std::string_view name) {
  std::string known;
  for (const Name& entry : kNames) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", entry.name);
    if (name != entry.name) continue;
    NamedPreTokenizer found;
    if (entry.nfc) found.normalizer.push_back({.kind = NormalizerStep::Kind::kUnicode, .form = NormalForm::kNfc});
    found.splits = RulesOf(entry.splits);
    found.whole_words_first = entry.whole_words_first;
    found.adds_bos = entry.adds_bos;
    return found;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown pre-tokenizer '", std::string(name), "'; known are ", known));
}

}  // namespace runahead
