#include "server/base/config.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/base/did_you_mean.h"
#include "server/base/printable.h"

namespace runahead {
namespace {

absl::Status Refuse(std::string message) {
  return absl::InvalidArgumentError(message);
}

std::string Shorten(absl::string_view text) {
  return Printable(text, /*most=*/80);
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", Shorten(text), "'");
}

// The text of a value that must be a plain (unquoted) scalar.
absl::StatusOr<std::string> Plain(const ConfigValue& value) {
  switch (value.kind) {
    case ConfigValue::Kind::kNull:
      return Refuse("has no value");
    case ConfigValue::Kind::kList:
      return Refuse("is a list");
    case ConfigValue::Kind::kMap:
      return Refuse("is a map");
    case ConfigValue::Kind::kScalar:
      break;
  }
  if (value.quoted) return Refuse(absl::StrCat(Quoted(value.scalar), " is a quoted string"));
  return value.scalar;
}

std::string DescribeInt(const IntLimits& limits) {
  const bool low = limits.min != std::numeric_limits<int64_t>::min();
  const bool high = limits.max != std::numeric_limits<int64_t>::max();
  if (low && high) return absl::StrCat("a whole number from ", limits.min, " to ", limits.max);
  if (low) return absl::StrCat("a whole number, ", limits.min, " or more");
  if (high) return absl::StrCat("a whole number, ", limits.max, " or less");
  return "a whole number";
}

std::string DescribeDouble(const DoubleLimits& limits) {
  const bool low = limits.min != std::numeric_limits<double>::lowest();
  const bool high = limits.max != std::numeric_limits<double>::max();
  if (low && high) return absl::StrFormat("a number from %.15g to %.15g", limits.min, limits.max);
  if (low) return absl::StrFormat("a number, %.15g or more", limits.min);
  if (high) return absl::StrFormat("a number, %.15g or less", limits.max);
  return "a number";
}

absl::StatusOr<int64_t> ParseInt(const ConfigValue& value, const IntLimits& limits) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, Plain(value));
  int64_t number = 0;
  if (!absl::SimpleAtoi(text, &number)) return Refuse(absl::StrCat(Quoted(text), " is not a whole number"));
  if (number < limits.min || number > limits.max) return Refuse(absl::StrCat(number, " is out of range"));
  return number;
}

struct ByteUnit {
  absl::string_view suffix;
  int64_t bytes;
};
constexpr ByteUnit kByteUnits[] = {
    {"KiB", int64_t{1} << 10},
    {"MiB", int64_t{1} << 20},
    {"GiB", int64_t{1} << 30},
    {"TiB", int64_t{1} << 40},
    {"kB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
};

absl::StatusOr<int64_t> ParseBytes(const ConfigValue& value, const IntLimits& limits) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, Plain(value));
  absl::string_view digits = text;
  int64_t unit = 1;
  for (const ByteUnit& candidate : kByteUnits) {
    if (!absl::EndsWith(text, candidate.suffix)) continue;
    digits.remove_suffix(candidate.suffix.size());
    unit = candidate.bytes;
    break;
  }
  int64_t count = 0;
  int64_t bytes = 0;
  if (!absl::SimpleAtoi(digits, &count)) return Refuse(absl::StrCat(Quoted(text), " is not a size"));
  if (__builtin_mul_overflow(count, unit, &bytes) || bytes < limits.min || bytes > limits.max) {
    return Refuse(absl::StrCat(Quoted(text), " is out of range"));
  }
  return bytes;
}

// As ParseBytes reads it: in the largest unit of 1024s that has no rest.
std::string BytesText(int64_t bytes) {
  for (const ByteUnit& unit : {kByteUnits[3], kByteUnits[2], kByteUnits[1], kByteUnits[0]}) {
    if (bytes != 0 && bytes % unit.bytes == 0) return absl::StrCat(bytes / unit.bytes, unit.suffix);
  }
  return absl::StrCat(bytes);
}

std::string DescribeBytes(const IntLimits& limits) {
  std::string range;
  if (limits.min != std::numeric_limits<int64_t>::min()) absl::StrAppend(&range, ", at least ", BytesText(limits.min));
  if (limits.max != std::numeric_limits<int64_t>::max()) absl::StrAppend(&range, ", at most ", BytesText(limits.max));
  return absl::StrCat("a number of bytes such as 1048576, 512MiB, 8GiB or 2GB", range);
}

}  // namespace

std::string FlagOfKey(absl::string_view key) {
  return absl::StrCat("--", absl::StrReplaceAll(key, {{"_", "-"}}));
}

void ConfigSchema::Add(ConfigKey key) {
  RUNAHEAD_CHECK(Find(key.name) == nullptr);
  keys_.push_back(std::move(key));
}

const ConfigKey* ConfigSchema::Find(absl::string_view name) const {
  for (const std::vector<ConfigKey>* keys : {&keys_, &gone_}) {
    for (const ConfigKey& key : *keys) {
      if (key.name == name) return &key;
    }
  }
  return nullptr;
}

void ConfigSchema::Int(std::string key, int64_t* value, IntLimits limits, std::string doc) {
  Add({.name = std::move(key),
       .doc = std::move(doc),
       .allowed = DescribeInt(limits),
       .value_name = "N",
       .default_text = absl::StrCat(*value),
       .required = limits.required,
       .set = [value, limits](const ConfigValue& given) -> absl::Status {
         RUNAHEAD_ASSIGN_OR_RETURN(*value, ParseInt(given, limits));
         return absl::OkStatus();
       }});
}

void ConfigSchema::Int(std::string key, int* value, IntLimits limits, std::string doc) {
  limits.min = std::max<int64_t>(limits.min, std::numeric_limits<int>::min());
  limits.max = std::min<int64_t>(limits.max, std::numeric_limits<int>::max());
  Add({.name = std::move(key),
       .doc = std::move(doc),
       .allowed = DescribeInt(limits),
       .value_name = "N",
       .default_text = absl::StrCat(*value),
       .required = limits.required,
       .set = [value, limits](const ConfigValue& given) -> absl::Status {
         RUNAHEAD_ASSIGN_OR_RETURN(const int64_t number, ParseInt(given, limits));
         *value = static_cast<int>(number);
         return absl::OkStatus();
       }});
}

void ConfigSchema::Double(std::string key, double* value, DoubleLimits limits, std::string doc) {
  Add({.name = std::move(key),
       .doc = std::move(doc),
       .allowed = DescribeDouble(limits),
       .value_name = "X",
       .default_text = absl::StrCat(*value),
       .required = limits.required,
       .set = [value, limits](const ConfigValue& given) -> absl::Status {
         RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, Plain(given));
         double number = 0;
         if (!absl::SimpleAtod(text, &number) || !std::isfinite(number)) {
           return Refuse(absl::StrCat(Quoted(text), " is not a finite number"));
         }
         if (number < limits.min || number > limits.max) return Refuse(absl::StrCat(Shorten(text), " is out of range"));
         *value = number;
         return absl::OkStatus();
       }});
}

void ConfigSchema::Bool(std::string key, bool* value, std::string doc) {
  Add({.name = std::move(key),
       .doc = std::move(doc),
       .allowed = "true or false",
       .obvious = true,
       .default_text = *value ? "true" : "false",
       .is_bool = true,
       .set = [value](const ConfigValue& given) -> absl::Status {
         RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, Plain(given));
         if (text != "true" && text != "false") return Refuse(absl::StrCat(Quoted(text), " is neither"));
         *value = text == "true";
         return absl::OkStatus();
       }});
}

void ConfigSchema::String(std::string key, std::string* value, StringLimits limits, std::string doc) {
  std::string allowed = limits.one_of.empty() ? (limits.allow_empty ? "text" : "text that is not empty")
                                              : absl::StrCat("one of ", absl::StrJoin(limits.one_of, ", "));
  Add({.name = std::move(key),
       .doc = std::move(doc),
       .allowed = std::move(allowed),
       .value_name = limits.one_of.empty() ? limits.value_name : "NAME",
       .obvious = limits.one_of.empty(),
       .default_text = *value,
       .required = limits.required,
       .set = [value, limits](ConfigValue given) -> absl::Status {
         given.quoted = false;  // a string may well be quoted
         RUNAHEAD_ASSIGN_OR_RETURN(std::string text, Plain(given));
         if (text.empty() && !limits.allow_empty) return Refuse("is empty");
         if (!limits.one_of.empty() &&
             std::find(limits.one_of.begin(), limits.one_of.end(), text) == limits.one_of.end()) {
           const std::string hint = ClosestName(text, limits.one_of);
           return Refuse(absl::StrCat(Quoted(text), " is unknown", hint.empty() ? "" : ", did you mean ", hint));
         }
         *value = std::move(text);
         return absl::OkStatus();
       }});
}

void ConfigSchema::Bytes(std::string key, int64_t* value, IntLimits limits, std::string doc) {
  Add({.name = std::move(key),
       .doc = std::move(doc),
       .allowed = DescribeBytes(limits),
       .value_name = "SIZE",
       .default_text = BytesText(*value),
       .required = limits.required,
       .set = [value, limits](const ConfigValue& given) -> absl::Status {
         RUNAHEAD_ASSIGN_OR_RETURN(*value, ParseBytes(given, limits));
         return absl::OkStatus();
       }});
}

void ConfigSchema::Duration(std::string key, absl::Duration* value, DurationLimits limits, std::string doc) {
  Add({.name = std::move(key),
       .doc = std::move(doc),
       .allowed = absl::StrCat("a duration such as 250ms, 30s or 1m30s, from ", absl::FormatDuration(limits.min),
                               " to ", absl::FormatDuration(limits.max)),
       .value_name = "TIME",
       .default_text = absl::FormatDuration(*value),
       .required = limits.required,
       .set = [value, limits](const ConfigValue& given) -> absl::Status {
         RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, Plain(given));
         absl::Duration duration;
         if (!absl::ParseDuration(text, &duration)) return Refuse(absl::StrCat(Quoted(text), " is not a duration"));
         if (duration < limits.min || duration > limits.max)
           return Refuse(absl::StrCat(Shorten(text), " is out of range"));
         *value = duration;
         return absl::OkStatus();
       }});
}

void ConfigSchema::Address(std::string key, std::string* value, AddressLimits limits, std::string doc) {
  Add({.name = std::move(key),
       .doc = std::move(doc),
       .allowed = limits.any_port ? "host:port; port 0 takes any free one" : "host:port with a port from 1 to 65535",
       .value_name = "ADDR",
       .default_text = *value,
       .required = limits.required,
       .set = [value, limits](ConfigValue given) -> absl::Status {
         given.quoted = false;
         RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, Plain(given));
         RUNAHEAD_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(text));
         if (address.port == 0 && !limits.any_port) return Refuse(absl::StrCat(Quoted(text), " has port 0"));
         *value = text;
         return absl::OkStatus();
       }});
}

void ConfigSchema::Strings(std::string key, std::vector<std::string>* values, ListLimits limits, std::string doc) {
  Add({.name = std::move(key),
       .doc = std::move(doc),
       .allowed = absl::StrCat("a list of ", config_internal::DescribeCount(limits), " strings"),
       .value_name = "TEXT",
       .default_text = absl::StrJoin(*values, ", "),
       .required = limits.required,
       .is_list = true,
       .set = [values, limits](const ConfigValue& given) -> absl::Status {
         if (given.kind != ConfigValue::Kind::kList) return Refuse("is not a list");
         RUNAHEAD_RETURN_IF_ERROR(config_internal::CheckItems(given.items.size(), limits));
         std::vector<std::string> texts;
         for (ConfigValue item : given.items) {
           item.quoted = false;
           RUNAHEAD_ASSIGN_OR_RETURN(texts.emplace_back(), Plain(item));
         }
         *values = std::move(texts);
         return absl::OkStatus();
       }});
}

void ConfigSchema::FlagOnly() {
  RUNAHEAD_CHECK(!keys_.empty());
  keys_.back().flag_only = true;
}

void ConfigSchema::Gone(std::string key, std::string still, std::string why) {
  RUNAHEAD_CHECK(Find(key) == nullptr);
  std::string allowed = absl::StrCat(still, ", or nothing");
  gone_.push_back({.name = std::move(key),
                   .allowed = std::move(allowed),
                   .set = [still = std::move(still), why = std::move(why)](ConfigValue given) -> absl::Status {
                     given.quoted = false;
                     RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, Plain(given));
                     return text == still ? absl::OkStatus() : Refuse(absl::StrCat(Quoted(text), " is gone: ", why));
                   }});
}

std::string ConfigSchema::UnknownKey(absl::string_view name) const {
  std::vector<std::string> names;
  for (const ConfigKey& key : keys_) {
    if (!key.flag_only) names.push_back(key.name);
  }
  const std::string hint = ClosestName(name, names);
  if (!hint.empty()) return absl::StrCat("unknown key, did you mean '", hint, "'?");
  return absl::StrCat("unknown key; allowed: ", absl::StrJoin(names, ", "));
}

absl::Status ConfigSchema::Complain(absl::string_view where, const ConfigKey& key, const absl::Status& problem) const {
  if (key.is_maps) return problem;
  return Refuse(absl::StrCat(where, ": ", prefix_, key.name, ": ", problem.message(), "; allowed: ", key.allowed));
}

absl::Status ConfigSchema::Apply(const ConfigValue& map) {
  if (place_ != nullptr) *place_ = map.where;
  if (map.kind == ConfigValue::Kind::kNull) return absl::OkStatus();  // an empty file: defaults
  if (map.kind != ConfigValue::Kind::kMap) {
    return Refuse(absl::StrCat(map.where, ": not a map; allowed: lines of 'key: value'"));
  }
  absl::flat_hash_set<std::string> seen;
  for (const ConfigValue& value : map.items) {
    const std::string& name = value.key;
    const ConfigKey* key = Find(name);
    if (key == nullptr) return Refuse(absl::StrCat(value.where, ": ", prefix_, Shorten(name), ": ", UnknownKey(name)));
    if (key->flag_only)
      return Refuse(absl::StrCat(value.where, ": ", name, ": only allowed as flag ", FlagOfKey(name)));
    if (!seen.insert(name).second) {
      return Refuse(absl::StrCat(value.where, ": ", prefix_, name, ": given a second time; allowed: once"));
    }
    if (absl::Status status = key->set(value); !status.ok()) return Complain(value.where, *key, status);
    set_.insert(name);
  }
  return absl::OkStatus();
}

absl::Status ConfigSchema::ApplyFlag(absl::string_view name, const ConfigValue& value) {
  const ConfigKey* key = Find(name);
  RUNAHEAD_CHECK(key != nullptr);
  if (absl::Status status = key->set(value); !status.ok()) {
    if (key->is_maps) return status;
    return Refuse(absl::StrCat(value.where, ": ", status.message(), "; allowed: ", key->allowed));
  }
  set_.insert(std::string(name));
  return absl::OkStatus();
}

const ConfigKey* ConfigSchema::FirstMissing() const {
  for (const ConfigKey& key : keys_) {
    if (key.required && !set_.contains(key.name)) return &key;
  }
  return nullptr;
}

absl::Status ConfigSchema::Finish(absl::string_view where) const {
  const ConfigKey* const key = FirstMissing();
  if (key == nullptr) return absl::OkStatus();
  return Refuse(absl::StrCat(where, ": ", prefix_, key->name, " is missing; allowed: ", key->allowed));
}

}  // namespace runahead
