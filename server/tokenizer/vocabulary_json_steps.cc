#include "server/tokenizer/vocabulary_json_steps.h"

#include <string>
#include <utility>

#include "kernels/base/status_macros.h"
#include "server/tokenizer/pre_tokenizer_names.h"

namespace runahead {
namespace {

using Matches = SplitRule::Matches;

absl::Status NotSupported(const JsonView& view, const std::string& type) {
  return view.Error("type '", type, "' is not supported");
}

// A text or a pattern; `literal` says which.
struct JsonPattern {
  std::string text;
  bool literal;
};

absl::StatusOr<JsonPattern> ReadPattern(const JsonView& step) {
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonView pattern, step.Get("pattern"));
  const bool literal = pattern.Has("String");
  RUNAHEAD_ASSIGN_OR_RETURN(std::string text, pattern.GetString(literal ? "String" : "Regex"));
  if (text.empty()) return pattern.Error("is empty");
  return JsonPattern{std::move(text), literal};
}

absl::StatusOr<Matches> ReadBehavior(const JsonView& step, const std::string& otherwise) {
  std::string name = otherwise;
  if (step.Has("behavior")) {
    RUNAHEAD_ASSIGN_OR_RETURN(name, step.GetString("behavior"));
  }
  constexpr std::pair<absl::string_view, Matches> kNames[] = {{"Isolated", Matches::kIsolated},
                                                              {"Removed", Matches::kRemoved},
                                                              {"MergedWithPrevious", Matches::kWithPrevious},
                                                              {"MergedWithNext", Matches::kWithNext},
                                                              {"Contiguous", Matches::kContiguous}};
  for (const auto& [known, matches] : kNames) {
    if (name == known) return matches;
  }
  return step.Error("behavior '", name, "' is not supported");
}

absl::StatusOr<BlankMarks::Prefix> ReadPrefix(const JsonView& metaspace) {
  using Prefix = BlankMarks::Prefix;
  if (!metaspace.Has("prepend_scheme")) {  // older files
    RUNAHEAD_ASSIGN_OR_RETURN(const bool prefix, metaspace.GetBool("add_prefix_space", true));
    return prefix ? Prefix::kAlways : Prefix::kNever;
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string scheme, metaspace.GetString("prepend_scheme"));
  if (scheme == "always") return Prefix::kAlways;
  if (scheme == "first") return Prefix::kFirst;
  if (scheme == "never") return Prefix::kNever;
  return metaspace.Error("prepend_scheme '", scheme, "' is not supported");
}

absl::Status CheckMark(const JsonView& metaspace) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string mark, metaspace.GetString("replacement"));
  if (mark != kBlankMark) return metaspace.Error("replacement '", mark, "' is not supported; '", kBlankMark, "' is");
  return absl::OkStatus();
}

class PreTokenizerReader {
 public:
  PreTokenizerReader(Vocabulary& vocabulary, bool& byte_level) : vocabulary_(vocabulary), byte_level_(byte_level) {}

  absl::Status Read(const JsonView& step) {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::string type, step.GetString("type"));
    if (type == "Sequence") {
      RUNAHEAD_ASSIGN_OR_RETURN(const JsonView steps, step.Get("pretokenizers"));
      return steps.ForElements([&](const JsonView& one) { return Read(one); });
    }
    if (type == "Split") return ReadSplit(step);
    if (type == "ByteLevel") return ReadByteLevel(step);
    if (type == "Metaspace") return ReadMetaspace(step);
    if (type == "Digits") {
      RUNAHEAD_ASSIGN_OR_RETURN(const bool each, step.GetBool("individual_digits", false));
      Add("\\p{N}", each ? Matches::kIsolated : Matches::kContiguous);
      return absl::OkStatus();
    }
    if (type == "Punctuation") {
      RUNAHEAD_ASSIGN_OR_RETURN(const Matches matches, ReadBehavior(step, "Isolated"));
      Add(kPunctuation, matches);
      return absl::OkStatus();
    }
    return NotSupported(step, type);
  }

 private:
  void Add(const std::string& pattern, Matches matches, bool inverted = false) {
    vocabulary_.splits.push_back({pattern, matches, inverted, /*over_alphabet=*/byte_level_});
  }

  // Whether nothing has been cut yet.
  bool First() const { return vocabulary_.splits.empty() && !byte_level_ && vocabulary_.blanks.mark.empty(); }

  absl::Status ReadSplit(const JsonView& step) {
    RUNAHEAD_ASSIGN_OR_RETURN(const JsonPattern pattern, ReadPattern(step));
    RUNAHEAD_ASSIGN_OR_RETURN(const Matches matches, ReadBehavior(step, ""));
    RUNAHEAD_ASSIGN_OR_RETURN(const bool inverted, step.GetBool("invert", false));
    Add(pattern.literal ? Regex::Quoted(pattern.text) : pattern.text, matches, inverted);
    return absl::OkStatus();
  }

  absl::Status ReadByteLevel(const JsonView& step) {
    RUNAHEAD_ASSIGN_OR_RETURN(const bool prefix, step.GetBool("add_prefix_space", true));
    RUNAHEAD_ASSIGN_OR_RETURN(const bool cuts, step.GetBool("use_regex", true));
    if (byte_level_) return step.Error("a second ByteLevel is not supported");
    if (prefix) {
      if (!First()) return step.Error("add_prefix_space behind other steps is not supported");
      vocabulary_.blanks.prefix = BlankMarks::Prefix::kAlways;
    }
    if (cuts) Add(kGpt2Pattern, Matches::kIsolated);
    byte_level_ = true;
    return absl::OkStatus();
  }

  absl::Status ReadMetaspace(const JsonView& step) {
    RUNAHEAD_RETURN_IF_ERROR(CheckMark(step));
    if (!First()) return step.Error("Metaspace behind other steps is not supported");
    vocabulary_.blanks.mark = kBlankMark;
    RUNAHEAD_ASSIGN_OR_RETURN(vocabulary_.blanks.prefix, ReadPrefix(step));
    RUNAHEAD_ASSIGN_OR_RETURN(const bool cuts, step.GetBool("split", true));
    if (cuts) Add(kBlankMark, Matches::kWithNext);
    return absl::OkStatus();
  }

  Vocabulary& vocabulary_;
  bool& byte_level_;
};

// What a decoder's steps do, together.
struct DecoderSteps {
  bool byte_level = false;
  bool byte_fallback = false;
  bool marks = false;  // become blanks
  DecodedBegin begin = DecodedBegin::kAll;
};

absl::Status ReadDecoderStep(const JsonView& step, DecoderSteps& found) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string type, step.GetString("type"));
  if (type == "Sequence") {
    RUNAHEAD_ASSIGN_OR_RETURN(const JsonView steps, step.Get("decoders"));
    return steps.ForElements([&](const JsonView& one) { return ReadDecoderStep(one, found); });
  }
  if (type == "Fuse") return absl::OkStatus();
  if (type == "ByteLevel") {
    found.byte_level = true;
  } else if (type == "ByteFallback") {
    found.byte_fallback = true;
  } else if (type == "Replace") {
    RUNAHEAD_ASSIGN_OR_RETURN(const JsonPattern pattern, ReadPattern(step));
    RUNAHEAD_ASSIGN_OR_RETURN(const std::string content, step.GetString("content"));
    if (pattern.text != kBlankMark || content != " ") {
      return step.Error("replacing '", pattern.text, "' by '", content, "' is not supported");
    }
    found.marks = true;
  } else if (type == "Strip") {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::string content, step.GetString("content"));
    RUNAHEAD_ASSIGN_OR_RETURN(const int64_t start, step.GetInt("start"));
    RUNAHEAD_ASSIGN_OR_RETURN(const int64_t stop, step.GetInt("stop"));
    if (content != " " || start < 0 || start > 1 || stop != 0) {
      return step.Error("is supported for at most one blank at the begin only");
    }
    if (start == 1) found.begin = DecodedBegin::kNoBlank;
  } else if (type == "Metaspace") {
    RUNAHEAD_RETURN_IF_ERROR(CheckMark(step));
    RUNAHEAD_ASSIGN_OR_RETURN(const BlankMarks::Prefix prefix, ReadPrefix(step));
    found.marks = true;
    if (prefix != BlankMarks::Prefix::kNever) found.begin = DecodedBegin::kNoMarks;
  } else {
    return NotSupported(step, type);
  }
  return absl::OkStatus();
}

// The one token of a template's piece, by the template's own table.
absl::StatusOr<int64_t> TemplateToken(const JsonView& post_processor, const JsonView& piece) {
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonView special, piece.Get("SpecialToken"));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string name, special.GetString("id"));
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonView table, post_processor.Get("special_tokens"));
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonView entry, table.Get(name));
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonView ids, entry.Get("ids"));
  std::vector<int64_t> found;
  RUNAHEAD_RETURN_IF_ERROR(ids.ForElements([&](const JsonView& id) -> absl::Status {
    RUNAHEAD_ASSIGN_OR_RETURN(const int64_t value, id.Int());
    found.push_back(value);
    return absl::OkStatus();
  }));
  if (found.size() != 1) return ids.Error("has ", found.size(), " tokens; one is supported");
  return found[0];
}

}  // namespace

absl::Status ReadJsonNormalizer(const JsonView& normalizer, Vocabulary& vocabulary) {
  using Kind = NormalizerStep::Kind;
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string type, normalizer.GetString("type"));
  if (type == "Sequence") {
    RUNAHEAD_ASSIGN_OR_RETURN(const JsonView steps, normalizer.Get("normalizers"));
    return steps.ForElements([&](const JsonView& one) { return ReadJsonNormalizer(one, vocabulary); });
  }
  NormalizerStep step = {.kind = Kind::kUnicode};
  if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    RUNAHEAD_ASSIGN_OR_RETURN(step.to, normalizer.GetString("prepend"));
  } else if (type == "Replace") {
    RUNAHEAD_ASSIGN_OR_RETURN(JsonPattern pattern, ReadPattern(normalizer));
    step.kind = pattern.literal ? Kind::kReplace : Kind::kPattern;
    step.from = std::move(pattern.text);
    RUNAHEAD_ASSIGN_OR_RETURN(step.to, normalizer.GetString("content"));
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    RUNAHEAD_ASSIGN_OR_RETURN(step.left, normalizer.GetBool("strip_left", true));
    RUNAHEAD_ASSIGN_OR_RETURN(step.right, normalizer.GetBool("strip_right", true));
  } else if (type == "NFC") {
    step.form = NormalForm::kNfc;
  } else if (type == "NFD") {
    step.form = NormalForm::kNfd;
  } else if (type == "NFKC") {
    step.form = NormalForm::kNfkc;
  } else if (type == "NFKD") {
    step.form = NormalForm::kNfkd;
  } else {
    return NotSupported(normalizer, type);
  }
  vocabulary.normalizer.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status ReadJsonPreTokenizer(const JsonView& pre_tokenizer, Vocabulary& vocabulary, bool& byte_level) {
  return PreTokenizerReader(vocabulary, byte_level).Read(pre_tokenizer);
}

absl::Status ReadJsonDecoder(const JsonView& decoder, bool byte_level, Vocabulary& vocabulary, bool& byte_fallback) {
  DecoderSteps found;
  RUNAHEAD_RETURN_IF_ERROR(ReadDecoderStep(decoder, found));
  if (found.byte_level != byte_level || found.marks == byte_level) {
    return decoder.Error(byte_level ? "must be ByteLevel, as the pre_tokenizer is"
                                    : "must replace marks by blanks: other vocabularies are not supported");
  }
  vocabulary.decoded_begin = found.begin;
  byte_fallback = found.byte_fallback;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int64_t>> ReadJsonPostProcessor(const JsonView& post_processor) {
  std::optional<int64_t> begin;
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string type, post_processor.GetString("type"));
  if (type == "Sequence") {
    RUNAHEAD_ASSIGN_OR_RETURN(const JsonView steps, post_processor.Get("processors"));
    RUNAHEAD_RETURN_IF_ERROR(steps.ForElements([&](const JsonView& one) -> absl::Status {
      RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<int64_t> found, ReadJsonPostProcessor(one));
      if (found && begin) return one.Error("a second token at the begin is not supported");
      if (found) begin = found;
      return absl::OkStatus();
    }));
    return begin;
  }
  if (type == "ByteLevel") return begin;
  if (type != "TemplateProcessing") return NotSupported(post_processor, type);
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonView pieces, post_processor.Get("single"));
  bool text_came = false;
  RUNAHEAD_RETURN_IF_ERROR(pieces.ForElements([&](const JsonView& piece) -> absl::Status {
    text_came = text_came || piece.Has("Sequence");
    if (text_came) return absl::OkStatus();
    RUNAHEAD_ASSIGN_OR_RETURN(const int64_t id, TemplateToken(post_processor, piece));
    if (begin) return piece.Error("a second token at the begin is not supported");
    begin = id;
    return absl::OkStatus();
  }));
  return begin;
}

}  // namespace runahead
