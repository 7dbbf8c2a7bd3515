// What several steps of a tokenizer.json have in common.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tokenizer/json_view.h"
#include "server/tokenizer/vocabulary.h"

namespace runahead {

absl::Status TypeNotSupported(const JsonView& step, const std::string& type);

// A text or a pattern; `literal` says which.
struct JsonPattern {
  std::string text;
  bool literal;
};

// The member `pattern`; not empty.
absl::StatusOr<JsonPattern> ReadPattern(const JsonView& step);

// Of a Metaspace: where it puts a mark, and that its mark is kBlankMark.
absl::StatusOr<BlankMarks::Prefix> ReadPrefix(const JsonView& metaspace);
absl::Status CheckMark(const JsonView& metaspace);

}  // namespace runahead
