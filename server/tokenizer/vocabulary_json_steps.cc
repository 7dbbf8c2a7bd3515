#include "server/tokenizer/vocabulary_json_steps.h"

#include <string>
#include <utility>

#include "kernels/base/status_macros.h"
#include "server/tokenizer/vocabulary_json_parts.h"

namespace runahead {
namespace {

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
    return TypeNotSupported(step, type);
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
    return TypeNotSupported(normalizer, type);
  }
  vocabulary.normalizer.push_back(std::move(step));
  return absl::OkStatus();
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

absl::Status DecodeAsEncoded(const JsonView& root, bool byte_level, Vocabulary& vocabulary, bool& byte_fallback) {
  bool begins = vocabulary.blanks.prefix != BlankMarks::Prefix::kNever, marks = !vocabulary.blanks.mark.empty();
  for (const NormalizerStep& step : vocabulary.normalizer) {
    begins = begins || step.kind == NormalizerStep::Kind::kPrepend;
    marks = marks || (step.from == " " && step.to == kBlankMark);
  }
  if (!byte_level && !marks) return root.Error("'decoder' is missing, and the steps before do not say what a blank is");
  if (!byte_level && begins) vocabulary.decoded_begin = DecodedBegin::kNoBlank;
  byte_fallback = !byte_level;
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
  if (type != "TemplateProcessing") return TypeNotSupported(post_processor, type);
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
