#include "server/grammar/schema_numbers.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/base/status_macros.h"
#include "server/base/indexed_map.h"
#include "server/grammar/schema_place.h"

namespace runahead {
namespace {

using Json = nlohmann::basic_json<IndexedMap>;

constexpr int64_t kMaxMultipleOf = 1024;       // xgrammar's
constexpr int64_t kMaxMultiplesRange = 10000;  // likewise
constexpr double kMaxBound = 1e9;              // six digits behind the point of what is below it count in a double

absl::Status ReadBound(const Json& value, bool integer, const std::string& place, Json& into) {
  const double bound = value.is_number() ? value.get<double>() : INFINITY;
  if (!(std::abs(bound) <= kMaxBound)) return RefuseAt(place, "this is a number from -1e9 to 1e9");
  if (bound == std::floor(bound)) {
    into = static_cast<int64_t>(bound);
    return absl::OkStatus();
  }
  if (integer) return RefuseAt(place, "the bound of an integer is a whole number");
  // xgrammar compares so many digits.
  if (std::abs(bound * 1e6 - std::round(bound * 1e6)) > 1e-4) {
    return RefuseAt(place, "a bound has at most 6 digits behind the point");
  }
  into = bound;
  return absl::OkStatus();
}

constexpr double kNoBound = INFINITY;  // a double: INFINITY is a float, and so would be what is read in its place

// The numbers that bounds leave: from `least` to `most`, without these where they are open.
struct NumberRange {
  double least = -kNoBound, most = kNoBound;
  bool open_least = false, open_most = false;

  bool IsEmpty() const { return least > most || (least == most && (open_least || open_most)); }
};

NumberRange RangeOf(const Json& json, bool integer) {
  const double step = integer ? 1 : 0;  // from an exclusive bound to the first number within
  NumberRange range;
  range.least = json.value("minimum", range.least);
  range.most = json.value("maximum", range.most);
  if (const double least = json.value("exclusiveMinimum", -kNoBound) + step; least >= range.least) {
    range.least = least;
    range.open_least = !integer && json.contains("exclusiveMinimum");
  }
  if (const double most = json.value("exclusiveMaximum", kNoBound) - step; most <= range.most) {
    range.most = most;
    range.open_most = !integer && json.contains("exclusiveMaximum");
  }
  return range;
}

// `json` has the bounds.
absl::Status ReadMultipleOf(const Json& value, bool integer, const std::string& place, Json& json) {
  if (!integer) return RefuseAt(place, "this is supported for integers only");
  const bool allowed = value.is_number_integer() && value >= 1 && value <= kMaxMultipleOf;
  if (!allowed) return RefuseAt(place, absl::StrCat("this is a whole number from 1 to ", kMaxMultipleOf));
  const bool least = json.contains("minimum") || json.contains("exclusiveMinimum");
  const bool most = json.contains("maximum") || json.contains("exclusiveMaximum");
  if (least != most) return RefuseAt(place, "this is supported beside no bound, or a lower and an upper one");
  if (least) {
    const int64_t from = json.value("minimum", json.value("exclusiveMinimum", int64_t{0}));
    const int64_t to = json.value("maximum", json.value("exclusiveMaximum", int64_t{0}));
    if (to - from >= kMaxMultiplesRange) {
      return RefuseAt(place, absl::StrCat("this is supported beside bounds less than ", kMaxMultiplesRange, " apart"));
    }
  }
  const NumberRange range = RangeOf(json, integer);
  const auto multiple = value.get<double>();
  if (std::floor(range.most / multiple) * multiple < range.least) {
    return RefuseAt(place, "no multiple is within the bounds beside it");
  }
  json["multipleOf"] = value.get<int64_t>();
  return absl::OkStatus();
}

bool IsLargeInteger(const Json& value) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if (value.is_number_unsigned()) return value.get<uint64_t>() > kMost;
  // What is larger still comes as a double; each from 2^63 on is an integer.
  return value.is_number_float() && std::abs(value.get<double>()) >= 0x1p63;
}

absl::Status RefuseLargeIntegersIn(const Json& value, const std::string& place) {
  if (IsLargeInteger(value)) return RefuseAt(place, "integers beyond 64 bits with a sign are not supported here");
  if (!value.is_structured()) return absl::OkStatus();
  size_t index = 0;
  for (const auto& [name, inside] : value.items()) {
    const std::string own = value.is_array() ? absl::StrCat(index++) : name;
    RUNAHEAD_RETURN_IF_ERROR(RefuseLargeIntegersIn(inside, PlaceBelow(place, own)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RefuseLargeIntegers(const std::string& value, const std::string& place) {
  return RefuseLargeIntegersIn(Json::parse(value), place);
}

absl::StatusOr<std::string> ReadNumberSchema(const std::string& schema, bool integer, const std::string& place) {
  const Json given = Json::parse(schema);
  Json json = {{"type", integer ? "integer" : "number"}};
  for (const char* keyword : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
    if (!given.contains(keyword)) continue;
    RUNAHEAD_RETURN_IF_ERROR(ReadBound(given[keyword], integer, PlaceBelow(place, keyword), json[keyword]));
  }
  if (RangeOf(json, integer).IsEmpty()) {
    return RefuseAt(place, absl::StrCat("no ", integer ? "integer" : "number", " is within its bounds"));
  }
  if (given.contains("multipleOf")) {
    RUNAHEAD_RETURN_IF_ERROR(ReadMultipleOf(given["multipleOf"], integer, PlaceBelow(place, "multipleOf"), json));
  }
  return json.dump();
}

}  // namespace runahead
