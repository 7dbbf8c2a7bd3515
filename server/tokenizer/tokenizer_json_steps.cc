#include "server/tokenizer/tokenizer_json_steps.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "server/tokenizer/pre_tokenizer_names.h"

namespace runahead {
namespace {

using Written = nlohmann::ordered_json;

std::string TextOf(const Written& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Written::error_handler_t::replace);
}

Written SequenceOf(const char* members, std::vector<Written> steps) {
  if (steps.empty()) return nullptr;
  if (steps.size() == 1) return steps.front();
  return {{"type", "Sequence"}, {members, std::move(steps)}};
}

absl::Status NoWord(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat("a tokenizer.json has no word for ", what));
}

Written NormalizerStepJson(const NormalizerStep& step) {
  using Kind = NormalizerStep::Kind;
  switch (step.kind) {
    case Kind::kPrepend:
      return {{"type", "Prepend"}, {"prepend", step.to}};
    case Kind::kReplace:
      return {{"type", "Replace"}, {"pattern", {{"String", step.from}}}, {"content", step.to}};
    case Kind::kPattern:
      return {{"type", "Replace"}, {"pattern", {{"Regex", step.from}}}, {"content", step.to}};
    case Kind::kStrip:
      return {{"type", "Strip"}, {"strip_left", step.left}, {"strip_right", step.right}};
    case Kind::kUnicode:
      break;
  }
  switch (step.form) {
    case NormalForm::kNfc:
      return {{"type", "NFC"}};
    case NormalForm::kNfd:
      return {{"type", "NFD"}};
    case NormalForm::kNfkc:
      return {{"type", "NFKC"}};
    case NormalForm::kNfkd:
      return {{"type", "NFKD"}};
  }
  return nullptr;
}

const char* BehaviorOf(SplitRule::Matches matches) {
  switch (matches) {
    case SplitRule::Matches::kIsolated:
      return "Isolated";
    case SplitRule::Matches::kRemoved:
      return "Removed";
    case SplitRule::Matches::kWithPrevious:
      return "MergedWithPrevious";
    case SplitRule::Matches::kWithNext:
      return "MergedWithNext";
    case SplitRule::Matches::kContiguous:
      return "Contiguous";
  }
  return "";
}

// The library has steps of their own for digits and for punctuation, with its own tables of what these are; models that
// have the patterns were trained with the steps.
Written SplitJson(const SplitRule& rule) {
  using Matches = SplitRule::Matches;
  const bool each = rule.matches == Matches::kIsolated;
  if (rule.pattern == "\\p{N}" && !rule.inverted && (each || rule.matches == Matches::kContiguous)) {
    return {{"type", "Digits"}, {"individual_digits", each}};
  }
  if (rule.pattern == kPunctuation && !rule.inverted) {
    return {{"type", "Punctuation"}, {"behavior", BehaviorOf(rule.matches)}};
  }
  return {{"type", "Split"},
          {"pattern", {{"Regex", rule.pattern}}},
          {"behavior", BehaviorOf(rule.matches)},
          {"invert", rule.inverted}};
}

Written ByteLevelJson(bool prefix, bool cuts) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"trim_offsets", false}, {"use_regex", cuts}};
}

const char* SchemeOf(BlankMarks::Prefix prefix) {
  switch (prefix) {
    case BlankMarks::Prefix::kNever:
      return "never";
    case BlankMarks::Prefix::kFirst:
      return "first";
    case BlankMarks::Prefix::kAlways:
      return "always";
  }
  return "";
}

Written MetaspaceJson(BlankMarks::Prefix prefix, bool cuts) {
  return {{"type", "Metaspace"}, {"replacement", kBlankMark}, {"prepend_scheme", SchemeOf(prefix)}, {"split", cuts}};
}

// A blank before each text is a setting of ByteLevel, which looks at what earlier steps left: it has to be the first,
// and can do GPT-2's cuts itself.
absl::StatusOr<std::vector<Written>> PrefixedSteps(const Vocabulary& vocabulary) {
  if (vocabulary.model != TokenModel::kByteBpe || vocabulary.blanks.prefix != BlankMarks::Prefix::kAlways) {
    return NoWord("a blank before texts where words are not written in the byte alphabet, or before the first only");
  }
  const std::vector<SplitRule>& rules = vocabulary.splits;
  const bool cuts = !rules.empty() && !rules[0].over_alphabet;
  if (cuts &&
      (rules[0].pattern != kGpt2Pattern || rules[0].matches != SplitRule::Matches::kIsolated || rules[0].inverted)) {
    return NoWord("a blank before texts that are then cut otherwise than GPT-2's");
  }
  std::vector<Written> steps = {ByteLevelJson(/*prefix=*/true, cuts)};
  for (size_t i = cuts ? 1 : 0; i < rules.size(); ++i) {
    if (!rules[i].over_alphabet) return NoWord("a blank before texts that are then cut twice");
    steps.push_back(SplitJson(rules[i]));
  }
  return steps;
}

absl::StatusOr<std::vector<Written>> PreTokenizerSteps(const Vocabulary& vocabulary) {
  const bool by_bytes = vocabulary.model == TokenModel::kByteBpe;
  const BlankMarks& blanks = vocabulary.blanks;
  if (blanks.mark.empty() && blanks.prefix != BlankMarks::Prefix::kNever) return PrefixedSteps(vocabulary);
  std::vector<Written> steps;
  if (!blanks.mark.empty()) {
    if (blanks.mark != kBlankMark) return NoWord(absl::StrCat("'", blanks.mark, "' in the place of blanks"));
    steps.push_back(MetaspaceJson(blanks.prefix, /*cuts=*/false));
  }
  bool in_alphabet = false;
  for (const SplitRule& rule : vocabulary.splits) {
    if (rule.over_alphabet && !by_bytes) return NoWord("cuts in the byte alphabet of words that are not written in it");
    if (in_alphabet && !rule.over_alphabet) return NoWord("cuts of a text behind those in the byte alphabet");
    if (rule.over_alphabet && !in_alphabet) steps.push_back(ByteLevelJson(/*prefix=*/false, /*cuts=*/false));
    in_alphabet = rule.over_alphabet;
    steps.push_back(SplitJson(rule));
  }
  if (by_bytes && !in_alphabet) steps.push_back(ByteLevelJson(/*prefix=*/false, /*cuts=*/false));
  return steps;
}

}  // namespace

std::string InJsonQuotes(const std::string& text) {
  return TextOf(text);
}

std::string NormalizerJson(const Vocabulary& vocabulary) {
  std::vector<Written> steps;
  for (const NormalizerStep& step : vocabulary.normalizer) steps.push_back(NormalizerStepJson(step));
  return TextOf(SequenceOf("normalizers", std::move(steps)));
}

absl::StatusOr<std::string> PreTokenizerJson(const Vocabulary& vocabulary) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::vector<Written> steps, PreTokenizerSteps(vocabulary));
  return TextOf(SequenceOf("pretokenizers", std::move(steps)));
}

absl::StatusOr<std::string> DecoderJson(const Vocabulary& vocabulary) {
  std::vector<Written> steps;
  const bool no_marks = vocabulary.decoded_begin == DecodedBegin::kNoMarks;
  if (vocabulary.model == TokenModel::kByteBpe) {
    if (no_marks) return NoWord("a begin without marks where words are written in the byte alphabet");
    steps.push_back(ByteLevelJson(/*prefix=*/true, /*cuts=*/true));
  } else {
    steps.push_back(no_marks ? MetaspaceJson(BlankMarks::Prefix::kAlways, /*cuts=*/true)
                             : Written{{"type", "Replace"}, {"pattern", {{"String", kBlankMark}}}, {"content", " "}});
    const bool bytes = std::any_of(vocabulary.tokens.begin(), vocabulary.tokens.end(),
                                   [](const VocabularyToken& token) { return token.kind == TokenKind::kByte; });
    if (bytes) steps.push_back({{"type", "ByteFallback"}});
    steps.push_back({{"type", "Fuse"}});
  }
  if (vocabulary.decoded_begin == DecodedBegin::kNoBlank) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return TextOf(SequenceOf("decoders", std::move(steps)));
}

std::string PostProcessorJson(const Vocabulary& vocabulary, const std::string& bos) {
  if (!vocabulary.adds_bos) return "null";
  const auto special = [&](int type) { return Written{{"SpecialToken", {{"id", bos}, {"type_id", type}}}}; };
  const auto text = [](const char* which, int type) {
    return Written{{"Sequence", {{"id", which}, {"type_id", type}}}};
  };
  const Written token = {{"id", bos}, {"ids", Written::array({*vocabulary.bos})}, {"tokens", Written::array({bos})}};
  return TextOf({{"type", "TemplateProcessing"},
                 {"single", Written::array({special(0), text("A", 0)})},
                 {"pair", Written::array({special(0), text("A", 0), special(1), text("B", 1)})},
                 {"special_tokens", {{bos, token}}}});
}

}  // namespace runahead
