// An object of a Hugging Face folder's config.json, checked key by key.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/format/json_value.h"

namespace runahead {

// Getters cannot fail: they return something, and the first problem is kept in status(), which names file and key. A
// key whose value is null counts as missing, as in transformers, but for Says. For one thread.
class ConfigObject {
 public:
  // `value` is an object and outlives it. `where` begins errors, `prefix` the names of keys in them ("text_config.").
  ConfigObject(const JsonValue& value, std::string where, std::string prefix = "")
      : value_(&value), where_(std::move(where)), prefix_(std::move(prefix)) {}

  bool Has(absl::string_view key) const { return Find(key) != nullptr; }
  // The key says nothing here, whatever its value: Unasked leaves it out.
  void PassOver(absl::string_view key) const { Ask(key); }
  // Whether the key is there, be it null.
  bool Says(absl::string_view key) const {
    Ask(key);
    return value_->Find(key) != nullptr;
  }

  // 0 to 2^53; a fraction is none.
  uint64_t Uint(absl::string_view key);
  uint64_t UintOr(absl::string_view key, uint64_t otherwise) { return Has(key) ? Uint(key) : otherwise; }
  double Float(absl::string_view key);
  double FloatOr(absl::string_view key, double otherwise) { return Has(key) ? Float(key) : otherwise; }
  bool BoolOr(absl::string_view key, bool otherwise);
  std::string Text(absl::string_view key);
  std::string TextOr(absl::string_view key, std::string otherwise) { return Has(key) ? Text(key) : otherwise; }
  // Nothing where it is missing.
  std::optional<ConfigObject> Object(absl::string_view key);
  const JsonValue::Array* Array(absl::string_view key);
  const JsonValue* Find(absl::string_view key) const;

  void Refuse(absl::string_view key, absl::string_view why);
  // Of an object that was taken from this one.
  void Update(const ConfigObject& part) { status_.Update(part.status_); }
  const absl::Status& status() const { return status_; }

  // The names of its keys that no getter was asked for, in their order; those of an object that was taken from it are
  // among them ("rope_scaling.factor"). Keys whose value is null say nothing and are not among them.
  std::vector<std::string> Unasked() const;

 private:
  void Ask(absl::string_view key) const;
  void AddUnasked(const JsonValue& object, const std::string& prefix, std::vector<std::string>& to) const;

  const JsonValue* value_;
  std::string where_, prefix_;
  absl::Status status_;
  // Names of keys, shared by all objects that were taken from one.
  std::shared_ptr<absl::flat_hash_set<std::string>> asked_ = std::make_shared<absl::flat_hash_set<std::string>>();
};

}  // namespace runahead
