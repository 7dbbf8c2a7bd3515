// The pre-tokenizer of a tokenizer.json.
#include <string>
#include <utility>

#include "kernels/base/status_macros.h"
#include "server/tokenizer/pre_tokenizer_names.h"
#include "server/tokenizer/vocabulary_json_parts.h"
#include "server/tokenizer/vocabulary_json_steps.h"

namespace runahead {
namespace {

using Matches = SplitRule::Matches;

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
    return TypeNotSupported(step, type);
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

}  // namespace

absl::Status ReadJsonPreTokenizer(const JsonView& pre_tokenizer, Vocabulary& vocabulary, bool& byte_level) {
  return PreTokenizerReader(vocabulary, byte_level).Read(pre_tokenizer);
}

}  // namespace runahead
