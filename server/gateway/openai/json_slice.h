// JSON of others as pieces of its text: it takes no memory beside it, and members stay as they were written, in their
// order, for what is passed on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace runahead {

// A value in a JSON text, which outlives it. Cheap to copy.
class JsonSlice {
 public:
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };

  // INVALID_ARGUMENT where `text` is no JSON as RFC 8259 has it (strings are UTF-8 without lone surrogates, numbers fit
  // a double), or is nested deeper than 64.
  static absl::StatusOr<JsonSlice> Check(absl::string_view text);

  Kind kind() const;
  bool is_null() const { return kind() == Kind::kNull; }
  // As it is written.
  absl::string_view text() const { return text_; }
  // "a string", "an object", ...: for messages.
  absl::string_view KindName() const;
  // An array, object or string that has nothing in it.
  bool IsEmpty() const;

  // Of a value of the kind.
  bool Bool() const { return text_[0] == 't'; }
  double Number() const;  // finite
  std::string String() const;
  // Of a number: where it is whole, which 1.0 and 1e3 are too, and fits.
  std::optional<int64_t> Integer() const;

  // Of an array and of an object, in the order of the text. What is not OK ends it.
  absl::Status ForElements(absl::FunctionRef<absl::Status(JsonSlice value)> on_element) const;
  absl::Status ForMembers(absl::FunctionRef<absl::Status(std::string key, JsonSlice value)> on_member) const;

 private:
  explicit JsonSlice(absl::string_view text) : text_(text) {}

  absl::string_view text_;  // from its first byte to its last
};

}  // namespace runahead
