// JSON from files that nobody has checked yet: depth and number of values are bounded while it is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace runahead {

// One value with all that is in it. Getters give null, or nothing, where it is of another type.
class JsonValue {
 public:
  using Array = std::vector<JsonValue>;
  using Object = std::vector<std::pair<std::string, JsonValue>>;  // in the text's order; no name is there twice
  // A whole number that 64 bits do not hold.
  struct LargeInteger {
    double nearest;
  };
  using Any = std::variant<std::monostate, bool, int64_t, LargeInteger, double, std::string, Array, Object>;

  JsonValue() = default;
  explicit JsonValue(Any value) : value_(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  // Of numbers that are written without fraction and exponent and that fit.
  const int64_t* integer() const { return std::get_if<int64_t>(&value_); }
  bool is_large_integer() const { return std::holds_alternative<LargeInteger>(value_); }
  // Of any number, or near it.
  std::optional<double> number() const;
  const std::string* text() const { return std::get_if<std::string>(&value_); }
  const Array* array() const { return std::get_if<Array>(&value_); }
  const Object* object() const { return std::get_if<Object>(&value_); }
  // An object's member, or null. Looks at one after the other.
  const JsonValue* Find(absl::string_view name) const;

  Array* mutable_array() { return std::get_if<Array>(&value_); }
  Object* mutable_object() { return std::get_if<Object>(&value_); }

 private:
  Any value_;
};

struct JsonLimits {
  size_t depth = 32;                // of arrays and objects in each other
  size_t values = size_t{1} << 20;  // in all
  bool names = true;                // messages may show names of the text: off for what callers wrote
};

// INVALID_ARGUMENT, which begins with `where`: no JSON, more than the limits allow, a name twice in an object.
absl::StatusOr<JsonValue> ParseJson(absl::string_view text, absl::string_view where, const JsonLimits& limits = {});

}  // namespace runahead
