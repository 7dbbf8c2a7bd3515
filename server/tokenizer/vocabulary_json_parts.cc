#include "server/tokenizer/vocabulary_json_parts.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {

absl::Status TypeNotSupported(const JsonView& step, const std::string& type) {
  return step.Error("type '", type, "' is not supported");
}

absl::StatusOr<JsonPattern> ReadPattern(const JsonView& step) {
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonView pattern, step.Get("pattern"));
  const bool literal = pattern.Has("String");
  RUNAHEAD_ASSIGN_OR_RETURN(std::string text, pattern.GetString(literal ? "String" : "Regex"));
  if (text.empty()) return pattern.Error("is empty");
  return JsonPattern{std::move(text), literal};
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

}  // namespace runahead
