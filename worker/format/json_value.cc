#include "worker/format/json_value.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "worker/format/quoted.h"

namespace runahead {
namespace {

using nlohmann::json;

// Builds a JsonValue as nlohmann's parser meets its parts, and stops it at the limits.
class JsonBuilder final : public json::json_sax_t {
 public:
  explicit JsonBuilder(const JsonLimits& limits) : limits_(limits) {}

  JsonValue& root() { return root_; }
  const std::string& problem() const { return problem_; }

  bool null() override { return Add(JsonValue()) != nullptr; }
  bool boolean(bool value) override { return Add(JsonValue(value)) != nullptr; }
  bool number_integer(int64_t value) override { return Add(JsonValue(value)) != nullptr; }
  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return AddLarge(static_cast<double>(value));
    return Add(JsonValue(static_cast<int64_t>(value))) != nullptr;
  }
  bool number_float(double value, const std::string& written) override {
    if (written.find_first_of(".eE") == std::string::npos) return AddLarge(value);
    return Add(JsonValue(value)) != nullptr;
  }
  bool string(std::string& value) override { return Add(JsonValue(std::move(value))) != nullptr; }
  bool binary(json::binary_t&) override { return Stop("has binary values"); }
  bool start_object(size_t) override { return Open(JsonValue(JsonValue::Object())); }
  bool start_array(size_t) override { return Open(JsonValue(JsonValue::Array())); }
  bool key(std::string& value) override {
    open_.back()->mutable_object()->emplace_back().first = std::move(value);
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool end_object() override {
    const JsonValue::Object& object = *open_.back()->object();
    open_.pop_back();
    std::vector<absl::string_view> names;
    names.reserve(object.size());
    for (const auto& [name, value] : object) names.push_back(name);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice == names.end()) return true;
    return Stop(absl::StrCat("has ", limits_.names ? Quoted(*twice) : "a name", " twice in one object"));
  }
  // The exception's text may be as long as the file.
  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    return Stop(absl::StrCat("is not JSON at byte ", position));
  }

 private:
  bool Stop(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  bool AddLarge(double nearest) { return Add(JsonValue(JsonValue::LargeInteger{nearest})) != nullptr; }

  // Where the value lies now; it stays there while it is open, for nothing is added beside it until then.
  JsonValue* Add(JsonValue value) {
    if (++values_ > limits_.values) {
      Stop(absl::StrCat("has more than ", limits_.values, " values"));
      return nullptr;
    }
    JsonValue* place = &root_;
    if (!open_.empty() && open_.back()->array() != nullptr) {
      place = &open_.back()->mutable_array()->emplace_back();
    } else if (!open_.empty()) {
      place = &open_.back()->mutable_object()->back().second;
    }
    *place = std::move(value);
    return place;
  }

  bool Open(JsonValue value) {
    if (open_.size() == limits_.depth) return Stop(absl::StrCat("is nested deeper than ", limits_.depth));
    JsonValue* place = Add(std::move(value));
    if (place != nullptr) open_.push_back(place);
    return place != nullptr;
  }

  const JsonLimits limits_;
  JsonValue root_;
  std::vector<JsonValue*> open_;
  size_t values_ = 0;
  std::string problem_;
};

}  // namespace

std::optional<double> JsonValue::number() const {
  if (const LargeInteger* large = std::get_if<LargeInteger>(&value_)) return large->nearest;
  if (const int64_t* whole = integer()) return static_cast<double>(*whole);
  if (const double* number = std::get_if<double>(&value_)) return *number;
  return std::nullopt;
}

const JsonValue* JsonValue::Find(absl::string_view name) const {
  if (object() == nullptr) return nullptr;
  for (const auto& [own, value] : *object()) {
    if (own == name) return &value;
  }
  return nullptr;
}

absl::StatusOr<JsonValue> ParseJson(absl::string_view text, absl::string_view where, const JsonLimits& limits) {
  JsonBuilder builder(limits);
  if (!json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(absl::StrCat(where, " ", builder.problem()));
  }
  return std::move(builder.root());
}

}  // namespace runahead
