#include "server/tokenizer/pre_tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

// White space as Unicode has it. PCRE2's own \s counts U+180E, too, which the models' tokenizers do not.
#define SPACES "\\x09-\\x0d\\x{85}\\p{Z}"

// Every numeric character alone.
constexpr const char* kDigits = "\\p{N}";

// GPT-2: contractions, words, numbers and punctuation with the blank before them, blanks.
constexpr const char* kGpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d"
    "| ?\\p{L}+"
    "| ?\\p{N}+"
    "| ?[^" SPACES
    "\\p{L}\\p{N}]+"
    "|[" SPACES "]+(?![^" SPACES
    "])"
    "|[" SPACES "]+";

// GPT-4 and its followers: contractions in any case, one character of anything before a word, numbers cut by `NUMBER`,
// line ends kept together with what is before them.
#define GPT4_WITH_NUMBER(NUMBER)   \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)"   \
  "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+" \
  "|" NUMBER "| ?[^" SPACES        \
  "\\p{L}\\p{N}]+[\\r\\n]*"        \
  "|[" SPACES                      \
  "]*[\\r\\n]+"                    \
  "|[" SPACES "]+(?![^" SPACES     \
  "])"                             \
  "|[" SPACES "]+"
constexpr const char* kLlama3 = GPT4_WITH_NUMBER("\\p{N}{1,3}");
constexpr const char* kQwen2 = GPT4_WITH_NUMBER("\\p{N}");

#undef GPT4_WITH_NUMBER
#undef SPACES

struct Rule {
  const char* name;
  const char* passes[2];  // the second may be absent
  bool whole_words_first;
  bool adds_bos;
};

constexpr Rule kRules[] = {
    {"smollm", {kDigits, kGpt2}, false, false},    {"starcoder", {kDigits, kGpt2}, false, false},
    {"gpt-2", {kGpt2, nullptr}, false, false},     {"default", {kGpt2, nullptr}, false, false},
    {"llama-bpe", {kLlama3, nullptr}, true, true}, {"qwen2", {kQwen2, nullptr}, false, false},
};

// The longest run at the beginning of `text` that is all characters or all no characters.
std::pair<std::string_view, bool> FirstRun(std::string_view text) {
  const auto is_character = [](std::string_view rest, size_t& bytes) {
    const Utf8Step step = NextUtf8(rest);
    bytes = step.bytes;
    return step.kind == Utf8Step::Kind::kCharacter;
  };
  size_t bytes = 0;
  const bool valid = is_character(text, bytes);
  size_t end = bytes;
  while (end < text.size() && is_character(text.substr(end), bytes) == valid) end += bytes;
  return {text.substr(0, end), valid};
}

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Create(std::string_view name) {
  std::string known;
  for (const Rule& rule : kRules) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", rule.name);
    if (name != rule.name) continue;
    PreTokenizer pre;
    for (const char* pass : rule.passes) {
      if (pass == nullptr) continue;
      RUNAHEAD_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pass));
      pre.passes_.push_back(std::move(regex));
    }
    pre.whole_words_first_ = rule.whole_words_first;
    pre.adds_bos_ = rule.adds_bos;
    return pre;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown pre-tokenizer '", std::string(name), "'; known are ", known));
}

absl::Status PreTokenizer::Split(std::string_view text, Regex::OnPiece on_word) const {
  while (!text.empty()) {
    const auto [run, valid] = FirstRun(text);
    text.remove_prefix(run.size());
    RUNAHEAD_RETURN_IF_ERROR(valid ? Cut(run, 0, on_word) : on_word(run));
  }
  return absl::OkStatus();
}

absl::Status PreTokenizer::Cut(std::string_view piece, size_t pass, Regex::OnPiece on_word) const {
  if (pass == passes_.size()) return on_word(piece);
  return passes_[pass].Split(piece, [&](std::string_view smaller) { return Cut(smaller, pass + 1, on_word); });
}

}  // namespace runahead
