#include "server/tokenizer/json_view.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxBytes = size_t{256} << 20;
constexpr size_t kMaxNamedBytes = 64;  // of a key, in a place
constexpr int kMaxDepth = 64;
constexpr size_t kMaxValues = size_t{16} << 20;

const Json& AsJson(const std::shared_ptr<const void>& value) {
  return *static_cast<const Json*>(value.get());
}

// What the text would make of memory, before it is parsed: its depth and its values, of which commas and brackets are
// the signs.
absl::Status CheckShape(absl::string_view text, const std::string& name) {
  if (text.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": has ", text.size(), " bytes; at most ", kMaxBytes, " are read"));
  }
  int depth = 0;
  size_t values = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
      continue;
    }
    in_string = c == '"';
    const bool opens = c == '[' || c == '{';
    values += opens || c == ',';
    depth += opens ? 1 : c == ']' || c == '}' ? -1 : 0;
    if (depth > kMaxDepth) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": is nested deeper than ", kMaxDepth, " at byte ", i));
    }
    if (values > kMaxValues) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": has more than ", kMaxValues, " values"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JsonView> JsonView::Parse(absl::string_view text, std::string name) {
  RUNAHEAD_RETURN_IF_ERROR(CheckShape(text, name));
  try {
    auto value = std::make_shared<const Json>(Json::parse(text.begin(), text.end()));
    return JsonView(std::move(value), std::move(name));
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", error.what()));
  }
}

JsonView JsonView::Child(const void* value, std::string place) const {
  return JsonView(std::shared_ptr<const void>(value_, value), std::move(place));
}

bool JsonView::IsNull() const {
  return AsJson(value_).is_null();
}

bool JsonView::IsString() const {
  return AsJson(value_).is_string();
}

bool JsonView::IsObject() const {
  return AsJson(value_).is_object();
}

bool JsonView::IsArray() const {
  return AsJson(value_).is_array();
}

bool JsonView::Has(absl::string_view key) const {
  if (!IsObject()) return false;
  const auto found = AsJson(value_).find(std::string(key));
  return found != AsJson(value_).end() && !found->is_null();
}

absl::StatusOr<JsonView> JsonView::Get(absl::string_view key) const {
  if (!IsObject()) return Error("is no object");
  const auto found = AsJson(value_).find(std::string(key));
  if (found == AsJson(value_).end() || found->is_null()) return Error("'", key, "' is missing");
  return Child(&*found, absl::StrCat(place_, ".", key));
}

absl::StatusOr<std::string> JsonView::GetString(absl::string_view key) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonView value, Get(key));
  return value.String();
}

absl::StatusOr<bool> JsonView::GetBool(absl::string_view key, bool otherwise) const {
  if (!Has(key)) return otherwise;
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonView value, Get(key));
  if (!AsJson(value.value_).is_boolean()) return value.Error("must be true or false");
  return AsJson(value.value_).get<bool>();
}

absl::StatusOr<int64_t> JsonView::GetInt(absl::string_view key) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonView value, Get(key));
  return value.Int();
}

absl::StatusOr<std::string> JsonView::String() const {
  if (!IsString()) return Error("must be a string");
  return AsJson(value_).get<std::string>();
}

absl::StatusOr<int64_t> JsonView::Int() const {
  const Json& json = AsJson(value_);
  if (!json.is_number_integer() || (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{1} << 62)) {
    return Error("must be an integer");
  }
  return json.get<int64_t>();
}

absl::StatusOr<double> JsonView::Number() const {
  if (!AsJson(value_).is_number()) return Error("must be a number");
  const double number = AsJson(value_).get<double>();
  if (!std::isfinite(number)) return Error("must be a finite number");
  return number;
}

absl::Status JsonView::ForMembers(
    absl::FunctionRef<absl::Status(absl::string_view key, const JsonView& value)> on_member) const {
  if (!IsObject()) return Error("must be an object");
  for (const auto& [key, value] : AsJson(value_).items()) {
    RUNAHEAD_RETURN_IF_ERROR(
        on_member(key, Child(&value, absl::StrCat(place_, ".", absl::string_view(key).substr(0, kMaxNamedBytes)))));
  }
  return absl::OkStatus();
}

absl::Status JsonView::ForElements(absl::FunctionRef<absl::Status(const JsonView& value)> on_element) const {
  if (!IsArray()) return Error("must be an array");
  size_t index = 0;
  for (const Json& value : AsJson(value_)) {
    RUNAHEAD_RETURN_IF_ERROR(on_element(Child(&value, absl::StrCat(place_, "[", index++, "]"))));
  }
  return absl::OkStatus();
}

}  // namespace runahead
