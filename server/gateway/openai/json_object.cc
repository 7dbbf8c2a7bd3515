#include "server/gateway/openai/json_object.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/printable.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

// Each is looked for among all: more would be slow, and no request has as many.
constexpr size_t kMaxMembers = 1024;

}  // namespace

absl::Status WrongValue(absl::string_view place, JsonSlice value, absl::string_view allowed) {
  // A number is no secret of a prompt; it says what is wrong better than its kind.
  const bool shown = value.kind() == JsonSlice::Kind::kNumber;
  return InvalidField(
      place, absl::StrCat("it is ", shown ? Printable(value.text()) : value.KindName(), "; ", allowed, " is allowed"));
}

absl::StatusOr<JsonObject> JsonObject::Read(JsonSlice value, std::string place) {
  if (value.kind() != JsonSlice::Kind::kObject) {
    return WrongValue(place.empty() ? "body" : place, value, "an object");
  }
  JsonObject object(std::move(place));
  absl::flat_hash_set<std::string> keys;
  RUNAHEAD_RETURN_IF_ERROR(value.ForMembers([&object, &keys](std::string key, JsonSlice member) {
    if (object.members_.size() == kMaxMembers) {
      return InvalidField(object.place_.empty() ? "body" : object.place_,
                          absl::StrCat("it has more than ", kMaxMembers, " members"));
    }
    if (!keys.insert(key).second)
      return InvalidField(object.PlaceOf(key.empty() ? "\"\"" : Printable(key)), "it is given twice");
    object.members_.push_back({std::move(key), member});
    return absl::OkStatus();
  }));
  return object;
}

absl::StatusOr<JsonObject> JsonObject::ReadBody(absl::string_view body) {
  const absl::StatusOr<JsonSlice> value = JsonSlice::Check(body);
  if (!value.ok()) return InvalidField("body", value.status().message());
  return Read(*value, "");
}

std::string JsonObject::PlaceOf(absl::string_view key) const {
  return place_.empty() ? std::string(key) : absl::StrCat(place_, ".", key);
}

std::optional<JsonSlice> JsonObject::Find(absl::string_view key) {
  for (Member& member : members_) {
    if (member.key != key) continue;
    member.read = true;
    return member.value.is_null() ? std::nullopt : std::optional(member.value);
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<bool>> JsonObject::Bool(absl::string_view key) {
  const std::optional<JsonSlice> value = Find(key);
  if (!value.has_value()) return std::nullopt;
  if (value->kind() != JsonSlice::Kind::kBool) return Wrong(key, *value, "true or false");
  return value->Bool();
}

absl::StatusOr<std::optional<std::string>> JsonObject::String(absl::string_view key) {
  const std::optional<JsonSlice> value = Find(key);
  if (!value.has_value()) return std::nullopt;
  if (value->kind() != JsonSlice::Kind::kString) return Wrong(key, *value, "a string");
  return value->String();
}

absl::StatusOr<std::optional<int64_t>> JsonObject::Integer(absl::string_view key, absl::string_view allowed,
                                                           int64_t least, int64_t most) {
  const std::optional<JsonSlice> value = Find(key);
  if (!value.has_value()) return std::nullopt;
  if (value->kind() != JsonSlice::Kind::kNumber) return Wrong(key, *value, allowed);
  const std::optional<int64_t> number = value->Integer();
  if (!number.has_value() || *number < least || *number > most) return Wrong(key, *value, allowed);
  return number;
}

absl::StatusOr<std::optional<float>> JsonObject::Float(absl::string_view key, absl::string_view allowed) {
  const std::optional<JsonSlice> value = Find(key);
  if (!value.has_value()) return std::nullopt;
  if (value->kind() != JsonSlice::Kind::kNumber) return Wrong(key, *value, allowed);
  const double number = value->Number();
  if (std::abs(number) > std::numeric_limits<float>::max()) return Wrong(key, *value, allowed);
  return static_cast<float>(number);
}

absl::StatusOr<std::optional<std::string>> JsonObject::Json(absl::string_view key, JsonSlice::Kind kind,
                                                            absl::string_view allowed) {
  const std::optional<JsonSlice> value = Find(key);
  if (!value.has_value()) return std::nullopt;
  if (value->kind() != kind) return Wrong(key, *value, allowed);
  return std::string(value->text());
}

absl::Status JsonObject::Integers(absl::string_view key, int64_t least, int64_t most,
                                  absl::FunctionRef<void(int64_t)> set) {
  const std::optional<JsonSlice> value = Find(key);
  if (!value.has_value()) return absl::OkStatus();
  if (value->kind() != JsonSlice::Kind::kArray) return Wrong(key, *value, "an array of integers");
  size_t index = 0;
  return value->ForElements([&](JsonSlice element) {
    const std::optional<int64_t> number = element.kind() == JsonSlice::Kind::kNumber ? element.Integer() : std::nullopt;
    if (!number.has_value() || *number < least || *number > most) {
      return WrongValue(absl::StrCat(PlaceOf(key), "[", index, "]"), element,
                        absl::StrCat("an integer from ", least, " to ", most));
    }
    set(*number);
    ++index;
    return absl::OkStatus();
  });
}

absl::Status JsonObject::Wrong(absl::string_view key, JsonSlice value, absl::string_view allowed) const {
  return WrongValue(PlaceOf(key), value, allowed);
}

std::vector<std::string> JsonObject::Unread() const {
  std::vector<std::string> unread;
  for (const Member& member : members_) {
    if (!member.read) unread.push_back(Printable(member.key));
  }
  return unread;
}

}  // namespace runahead
