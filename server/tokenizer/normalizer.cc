#include "server/tokenizer/normalizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

constexpr size_t kMaxNormalizedBytes = size_t{1} << 30;

absl::StatusOr<std::string> ReplaceAll(std::string_view text, const std::string& from, const std::string& to,
                                       Steps& steps) {
  std::string out;
  size_t done = 0;
  for (size_t found = text.find(from); found != std::string_view::npos; found = text.find(from, done)) {
    RUNAHEAD_RETURN_IF_ERROR(steps.Next());
    out += text.substr(done, found - done);
    out += to;
    done = found + from.size();
    if (out.size() > kMaxNormalizedBytes) break;
  }
  out += text.substr(done);
  return out;
}

absl::StatusOr<std::string> ReplacePattern(std::string_view text, const Regex& pattern, const std::string& to,
                                           Steps& steps) {
  std::string out;
  RUNAHEAD_RETURN_IF_ERROR(pattern.Split(text, [&](std::string_view piece, bool match) -> absl::Status {
    out += match ? to : piece;
    if (out.size() > kMaxNormalizedBytes)
      return absl::InvalidArgumentError("the text is too long once it is normalised");
    return steps.Next();
  }));
  return out;
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::Create(const std::vector<NormalizerStep>& steps) {
  Normalizer normalizer;
  for (const NormalizerStep& step : steps) {
    using Kind = NormalizerStep::Kind;
    if (step.to.size() > kMaxNormalizerText) {
      return absl::InvalidArgumentError(absl::StrCat("a normaliser's text has ", step.to.size(), " bytes; at most ",
                                                     kMaxNormalizerText, " are supported"));
    }
    if ((step.kind == Kind::kReplace || step.kind == Kind::kPattern) && step.from.empty()) {
      return absl::InvalidArgumentError("a normaliser replaces nothing");
    }
    Stage stage = {step, std::nullopt};
    if (step.kind == Kind::kPattern) {
      RUNAHEAD_ASSIGN_OR_RETURN(stage.pattern, Regex::Compile(step.from));
    }
    normalizer.Bound(step);
    normalizer.stages_.push_back(std::move(stage));
  }
  return normalizer;
}

void Normalizer::Bound(const NormalizerStep& step) {
  switch (step.kind) {
    case NormalizerStep::Kind::kPrepend:
      return;
    case NormalizerStep::Kind::kReplace:
      if (step.to.size() < step.from.size()) most_bytes_for_one_ = 0;
      return;
    case NormalizerStep::Kind::kPattern:
      // SentencePiece's way to make one blank of several; of others nothing is known.
      if (step.from != " {2,}") most_bytes_for_one_ = 0;
      drops_white_space_ = true;
      return;
    case NormalizerStep::Kind::kStrip:
      drops_white_space_ = true;
      return;
    case NormalizerStep::Kind::kUnicode:
      most_bytes_for_one_ *= kNormalFormShrinks;
      return;
  }
}

absl::StatusOr<std::string> Normalizer::Apply(std::string_view text, Steps& steps) const {
  std::string normalized(text);
  for (const Stage& stage : stages_) {
    RUNAHEAD_ASSIGN_OR_RETURN(normalized, Run(stage, normalized, steps));
    if (normalized.size() > kMaxNormalizedBytes) {
      return absl::InvalidArgumentError(absl::StrCat("the text has ", normalized.size(),
                                                     " bytes once it is normalised; at most ", kMaxNormalizedBytes,
                                                     " can be encoded"));
    }
  }
  return normalized;
}

absl::StatusOr<std::string> Normalizer::Run(const Stage& stage, std::string_view text, Steps& steps) {
  const NormalizerStep& step = stage.step;
  switch (step.kind) {
    case NormalizerStep::Kind::kPrepend:
      return text.empty() ? std::string() : absl::StrCat(step.to, absl::string_view(text.data(), text.size()));
    case NormalizerStep::Kind::kReplace:
      return ReplaceAll(text, step.from, step.to, steps);
    case NormalizerStep::Kind::kStrip:
      if (step.left) text.remove_prefix(WhiteSpaceBegin(text));
      if (step.right) text.remove_suffix(WhiteSpaceEnd(text));
      return std::string(text);
    case NormalizerStep::Kind::kPattern:
    case NormalizerStep::Kind::kUnicode:
      break;
  }
  std::string out;
  while (!text.empty()) {
    const Utf8Run run = FirstUtf8Run(text);
    text.remove_prefix(run.text.size());
    if (!run.valid) {
      out += run.text;
    } else if (stage.pattern) {
      RUNAHEAD_ASSIGN_OR_RETURN(const std::string replaced, ReplacePattern(run.text, *stage.pattern, step.to, steps));
      out += replaced;
    } else {
      RUNAHEAD_RETURN_IF_ERROR(AppendNormalized(run.text, step.form, steps, out));
    }
  }
  return out;
}

}  // namespace runahead
