#include "worker/format/config_object.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace runahead {

const JsonValue* ConfigObject::Find(absl::string_view key) const {
  Ask(key);
  const JsonValue* found = value_->Find(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

uint64_t ConfigObject::Uint(absl::string_view key) {
  constexpr int64_t kMost = int64_t{1} << 53;
  const JsonValue* found = Find(key);
  if (found == nullptr) {
    Refuse(key, "is missing");
  } else if (found->integer() == nullptr || *found->integer() < 0 || *found->integer() > kMost) {
    Refuse(key, "must be a whole number from 0 on");
  } else {
    return static_cast<uint64_t>(*found->integer());
  }
  return 0;
}

double ConfigObject::Float(absl::string_view key) {
  const JsonValue* found = Find(key);
  if (found == nullptr) {
    Refuse(key, "is missing");
  } else if (!found->number().has_value() || !std::isfinite(*found->number())) {
    Refuse(key, "must be a number");
  } else {
    return *found->number();
  }
  return 0;
}

bool ConfigObject::BoolOr(absl::string_view key, bool otherwise) {
  const JsonValue* found = Find(key);
  if (found == nullptr) return otherwise;
  if (found->boolean() != nullptr) return *found->boolean();
  Refuse(key, "must be true or false");
  return otherwise;
}

std::string ConfigObject::Text(absl::string_view key) {
  const JsonValue* found = Find(key);
  if (found == nullptr) {
    Refuse(key, "is missing");
  } else if (found->text() == nullptr) {
    Refuse(key, "must be a text");
  } else {
    return *found->text();
  }
  return "";
}

std::optional<ConfigObject> ConfigObject::Object(absl::string_view key) {
  const JsonValue* found = Find(key);
  if (found == nullptr) return std::nullopt;
  if (found->object() != nullptr) {
    ConfigObject part(*found, where_, absl::StrCat(prefix_, key, "."));
    part.asked_ = asked_;
    return part;
  }
  Refuse(key, "must be an object");
  return std::nullopt;
}

const JsonValue::Array* ConfigObject::Array(absl::string_view key) {
  const JsonValue* found = Find(key);
  if (found != nullptr && found->array() == nullptr) Refuse(key, "must be an array");
  return found == nullptr ? nullptr : found->array();
}

void ConfigObject::Refuse(absl::string_view key, absl::string_view why) {
  status_.Update(absl::InvalidArgumentError(absl::StrCat(where_, ": key ", prefix_, key, " ", why)));
}

std::vector<std::string> ConfigObject::Unasked() const {
  std::vector<std::string> unasked;
  AddUnasked(*value_, prefix_, unasked);
  return unasked;
}

void ConfigObject::Ask(absl::string_view key) const {
  asked_->insert(absl::StrCat(prefix_, key));
}

void ConfigObject::AddUnasked(const JsonValue& object, const std::string& prefix, std::vector<std::string>& to) const {
  for (const auto& [key, value] : *object.object()) {
    const std::string name = absl::StrCat(prefix, key);
    if (value.is_null()) continue;
    if (!asked_->contains(name)) {
      to.push_back(name);
    } else if (value.object() != nullptr) {
      AddUnasked(value, name + ".", to);
    }
  }
}

}  // namespace runahead
