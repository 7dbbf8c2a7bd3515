// JSON to values and back.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/tokenizer/jinja/value.h"

namespace runahead::jinja {

// Arrays and objects in one another that JSON of a caller may have.
inline constexpr int kMaxJsonDepth = 50;

// What the JSON says; all text in it is the caller's. INVALID_ARGUMENT says at which byte it is none, without showing
// it; so are integers beyond 64 bits.
absl::StatusOr<Value> ParseJson(std::string_view json);

// As Python's json.dumps has it: parameters are its own. `indent`: what a level is indented by; null: all is on one
// line.
struct JsonStyle {
  const std::string* indent = nullptr;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ascii_only = false;
  bool sort_keys = false;
};
// Fails for what JSON has no form for. A text in it keeps its marks, all else is nobody's.
Text ToJson(const Value& value, const JsonStyle& style, Rendering& r);

}  // namespace runahead::jinja
