#include "server/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/base/status_macros.h"
#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

// Puts adjacent pieces of one text together into words, as a rule says.
class WordJoiner {
 public:
  WordJoiner(const SplitRule& rule, PreTokenizer::OnWord on_word) : rule_(rule), on_word_(on_word) {}

  absl::Status Add(std::string_view piece, bool match) {
    match = match != rule_.inverted;
    using Matches = SplitRule::Matches;
    if (rule_.matches == Matches::kIsolated) return on_word_(piece);
    if (rule_.matches == Matches::kRemoved) return match ? absl::OkStatus() : on_word_(piece);
    const bool joins = word_ && ((rule_.matches == Matches::kWithPrevious && match && !ends_in_match_) ||
                                 (rule_.matches == Matches::kWithNext && !match && ends_in_match_) ||
                                 (rule_.matches == Matches::kContiguous && match == ends_in_match_));
    if (joins) {
      word_ = std::string_view(word_->data(), word_->size() + piece.size());
    } else {
      RUNAHEAD_RETURN_IF_ERROR(Finish());
      word_ = piece;
    }
    ends_in_match_ = match;
    return absl::OkStatus();
  }

  absl::Status Finish() {
    const std::optional<std::string_view> word = std::exchange(word_, std::nullopt);
    return word ? on_word_(*word) : absl::OkStatus();
  }

 private:
  const SplitRule& rule_;
  const PreTokenizer::OnWord on_word_;
  std::optional<std::string_view> word_;
  bool ends_in_match_ = false;
};

std::string InAlphabet(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += ByteToAlphabet(static_cast<unsigned char>(byte));
  return text;
}

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Create(const std::vector<SplitRule>& rules) {
  PreTokenizer pre;
  for (const SplitRule& rule : rules) {
    RUNAHEAD_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(rule.pattern));
    pre.passes_.push_back({rule, std::move(regex)});
  }
  return pre;
}

bool PreTokenizer::removes() const {
  return std::any_of(passes_.begin(), passes_.end(),
                     [](const Pass& pass) { return pass.rule.matches == SplitRule::Matches::kRemoved; });
}

absl::Status PreTokenizer::Split(std::string_view text, OnWord on_word) const {
  while (!text.empty()) {
    const Utf8Run run = FirstUtf8Run(text);
    text.remove_prefix(run.text.size());
    RUNAHEAD_RETURN_IF_ERROR(run.valid ? Cut(run.text, 0, on_word) : on_word(run.text));
  }
  return absl::OkStatus();
}

absl::Status PreTokenizer::Cut(std::string_view piece, size_t pass, OnWord on_word) const {
  if (pass == passes_.size()) return on_word(piece);
  const SplitRule& rule = passes_[pass].rule;
  const auto cut_further = [&](std::string_view word) { return Cut(word, pass + 1, on_word); };
  WordJoiner joiner(rule, cut_further);
  if (!rule.over_alphabet) {
    const auto add = [&](std::string_view smaller, bool match) { return joiner.Add(smaller, match); };
    RUNAHEAD_RETURN_IF_ERROR(passes_[pass].regex.Split(piece, add));
    return joiner.Finish();
  }
  size_t done = 0;  // every character stands for a byte
  RUNAHEAD_RETURN_IF_ERROR(passes_[pass].regex.Split(InAlphabet(piece), [&](std::string_view smaller, bool match) {
    const auto begins = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; };
    const size_t bytes = static_cast<size_t>(std::count_if(smaller.begin(), smaller.end(), begins));
    const std::string_view word = piece.substr(done, bytes);
    done += bytes;
    return joiner.Add(word, match);
  }));
  return joiner.Finish();
}

}  // namespace runahead
