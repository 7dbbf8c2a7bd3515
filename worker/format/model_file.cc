#include "worker/format/model_file.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/format/gguf_cursor.h"
#include "worker/format/quoted.h"
#include "xxhash.h"

namespace runahead {
namespace {

using Type = MetadataValue::Type;

absl::string_view TypeName(Type type) {
  constexpr absl::string_view kNames[] = {"an 8-bit unsigned integer",
                                          "an 8-bit integer",
                                          "a 16-bit unsigned integer",
                                          "a 16-bit integer",
                                          "a 32-bit unsigned integer",
                                          "a 32-bit integer",
                                          "a 32-bit float",
                                          "a boolean",
                                          "a string",
                                          "an array",
                                          "a 64-bit unsigned integer",
                                          "a 64-bit integer",
                                          "a 64-bit float"};
  return kNames[static_cast<size_t>(type)];
}

// A 64-bit unsigned value above the largest signed one has no int64_t and counts as out of range.
struct Integer {
  int64_t value = 0;
  bool in_range = true;
};

// The next integer of type `type`, or nothing when `type` is no integer type.
std::optional<Integer> ReadInteger(Type type, GgufCursor& cursor) {
  switch (type) {
    case Type::kUint8:
      return Integer{*cursor.Number<uint8_t>()};
    case Type::kInt8:
      return Integer{*cursor.Number<int8_t>()};
    case Type::kUint16:
      return Integer{*cursor.Number<uint16_t>()};
    case Type::kInt16:
      return Integer{*cursor.Number<int16_t>()};
    case Type::kUint32:
      return Integer{*cursor.Number<uint32_t>()};
    case Type::kInt32:
      return Integer{*cursor.Number<int32_t>()};
    case Type::kInt64:
      return Integer{*cursor.Number<int64_t>()};
    case Type::kUint64: {
      const uint64_t value = *cursor.Number<uint64_t>();
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return Integer{0, false};
      return Integer{static_cast<int64_t>(value)};
    }
    case Type::kFloat32:
    case Type::kFloat64:
    case Type::kBool:
    case Type::kString:
    case Type::kArray:
      break;
  }
  return std::nullopt;
}

}  // namespace

int64_t FileTensor::rows() const {
  int64_t rows = 1;
  for (size_t i = 1; i < dims.size(); ++i) rows *= dims[i];
  return rows;
}

absl::StatusOr<const MetadataValue*> ModelFile::Find(absl::string_view key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) {
    const auto why = absent_.find(key);
    if (why != absent_.end()) return absl::NotFoundError(why->second);
    return absl::NotFoundError(absl::StrCat(path_, ": metadata key ", Quoted(key), " is missing"));
  }
  return &found->second;
}

bool ModelFile::Has(absl::string_view key) const {
  return Find(key).ok();
}

std::vector<ModelFile::Entry> ModelFile::Entries(absl::string_view prefix) const {
  std::vector<Entry> entries;
  for (const auto& [key, value] : metadata_) {
    if (absl::StartsWith(key, prefix)) entries.push_back({key, value});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
  return entries;
}

uint64_t ModelFile::FingerprintOfTexts(bool templates) const {
  std::vector<absl::string_view> keys;
  for (const auto& [key, value] : metadata_) {
    if (absl::StartsWith(key, "tokenizer.") && absl::StartsWith(key, "tokenizer.chat_template") == templates) {
      keys.push_back(key);
    }
  }
  std::sort(keys.begin(), keys.end());
  std::string hashed;  // hashes of hashes: a long vocabulary is not copied
  for (const absl::string_view key : keys) {
    const MetadataValue& value = metadata_.at(key);
    const uint64_t numbers[] = {static_cast<uint64_t>(value.type), static_cast<uint64_t>(value.element), value.count,
                                value.bytes.size(), XXH64(value.bytes.data(), value.bytes.size(), /*seed=*/0)};
    absl::StrAppend(&hashed, key, "\n");
    hashed.append(reinterpret_cast<const char*>(numbers), sizeof(numbers));
  }
  return XXH64(hashed.data(), hashed.size(), /*seed=*/0);
}

absl::Status ModelFile::WrongType(absl::string_view key, const MetadataValue& value, absl::string_view wanted) const {
  const std::string found = value.type == Type::kArray
                                ? absl::StrCat("an array whose elements are each ", TypeName(value.element))
                                : std::string(TypeName(value.type));
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ": metadata key ", Quoted(key), " is ", found, "; it must be ", wanted));
}

absl::StatusOr<std::string> ModelFile::GetString(absl::string_view key) const {
  const absl::StatusOr<const MetadataValue*> value = Find(key);
  if (!value.ok()) return value.status();
  if ((*value)->type != Type::kString) return WrongType(key, **value, "a string");
  return std::string(reinterpret_cast<const char*>((*value)->bytes.data()), (*value)->bytes.size());
}

absl::StatusOr<uint64_t> ModelFile::GetUint(absl::string_view key) const {
  const absl::StatusOr<const MetadataValue*> value = Find(key);
  if (!value.ok()) return value.status();
  GgufCursor cursor((*value)->bytes);
  if ((*value)->type == Type::kUint64) return *cursor.Number<uint64_t>();
  const std::optional<Integer> integer = ReadInteger((*value)->type, cursor);
  if (!integer) return WrongType(key, **value, "an integer");
  if (integer->value < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": metadata key ", Quoted(key), " is ", integer->value, "; it must not be negative"));
  }
  return static_cast<uint64_t>(integer->value);
}

absl::StatusOr<double> ModelFile::GetFloat(absl::string_view key) const {
  const absl::StatusOr<const MetadataValue*> value = Find(key);
  if (!value.ok()) return value.status();
  GgufCursor cursor((*value)->bytes);
  double number = 0;
  if ((*value)->type == Type::kFloat32) {
    number = *cursor.Number<float>();
  } else if ((*value)->type == Type::kFloat64) {
    number = *cursor.Number<double>();
  } else {
    return WrongType(key, **value, "a float");
  }
  if (!std::isfinite(number)) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": metadata key ", Quoted(key), " is not a finite number"));
  }
  return number;
}

absl::StatusOr<bool> ModelFile::GetBool(absl::string_view key) const {
  const absl::StatusOr<const MetadataValue*> value = Find(key);
  if (!value.ok()) return value.status();
  if ((*value)->type != Type::kBool) return WrongType(key, **value, "a boolean");
  return *GgufCursor((*value)->bytes).Number<uint8_t>() != 0;
}

absl::StatusOr<std::vector<absl::string_view>> ModelFile::GetStrings(absl::string_view key) const {
  const absl::StatusOr<const MetadataValue*> value = Find(key);
  if (!value.ok()) return value.status();
  if ((*value)->type != Type::kArray || (*value)->element != Type::kString) {
    return WrongType(key, **value, "an array of strings");
  }
  GgufCursor cursor((*value)->bytes);
  std::vector<absl::string_view> strings;
  strings.reserve((*value)->count);
  for (uint64_t i = 0; i < (*value)->count; ++i) strings.push_back(*cursor.String());
  return strings;
}

absl::StatusOr<std::vector<int64_t>> ModelFile::GetInts(absl::string_view key) const {
  const absl::StatusOr<const MetadataValue*> value = Find(key);
  if (!value.ok()) return value.status();
  if ((*value)->type != Type::kArray) return WrongType(key, **value, "an array of integers");
  GgufCursor cursor((*value)->bytes);
  std::vector<int64_t> integers;
  for (uint64_t i = 0; i < (*value)->count; ++i) {
    const std::optional<Integer> integer = ReadInteger((*value)->element, cursor);
    if (!integer) return WrongType(key, **value, "an array of integers");
    if (!integer->in_range) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": element ", i, " of metadata key ", Quoted(key),
                                                     " is larger than a signed 64-bit integer"));
    }
    integers.push_back(integer->value);
  }
  return integers;
}

absl::StatusOr<std::vector<double>> ModelFile::GetFloats(absl::string_view key) const {
  const absl::StatusOr<const MetadataValue*> value = Find(key);
  if (!value.ok()) return value.status();
  const Type element = (*value)->element;
  if ((*value)->type != Type::kArray || (element != Type::kFloat32 && element != Type::kFloat64)) {
    return WrongType(key, **value, "an array of floats");
  }
  GgufCursor cursor((*value)->bytes);
  std::vector<double> floats;
  floats.reserve((*value)->count);
  for (uint64_t i = 0; i < (*value)->count; ++i) {
    floats.push_back(element == Type::kFloat32 ? *cursor.Number<float>() : *cursor.Number<double>());
    if (!std::isfinite(floats.back())) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ": element ", i, " of metadata key ", Quoted(key), " is not a finite number"));
    }
  }
  return floats;
}

absl::StatusOr<std::vector<bool>> ModelFile::GetBools(absl::string_view key) const {
  const absl::StatusOr<const MetadataValue*> value = Find(key);
  if (!value.ok()) return value.status();
  if ((*value)->type != Type::kArray || (*value)->element != Type::kBool) {
    return WrongType(key, **value, "an array of booleans");
  }
  std::vector<bool> bools;
  for (const std::byte byte : (*value)->bytes) bools.push_back(byte != std::byte{0});
  return bools;
}

absl::StatusOr<const FileTensor*> ModelFile::FindTensor(absl::string_view name) const {
  const auto found = tensor_index_.find(name);
  if (found == tensor_index_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": tensor ", Quoted(name), " is missing"));
  }
  return &tensors_[found->second];
}

absl::StatusOr<int64_t> VocabularySize(const ModelFile& file) {
  const absl::StatusOr<const FileTensor*> table = file.FindTensor("token_embd.weight");
  if (!table.ok()) return table.status();
  return (*table)->rows();
}

bool MostlyQuantised(const ModelFile& file) {
  int64_t quantised = 0, all = 0;
  for (const FileTensor& tensor : file.tensors()) {
    const int64_t elements = tensor.columns() * tensor.rows();
    all += elements;
    if (!IsPlain(tensor.type)) quantised += elements;
  }
  return 2 * quantised > all;
}

absl::Status CheckTakesInt8(const ModelFile& file) {
  std::set<std::string> types;
  for (const FileTensor& tensor : file.tensors()) {
    if (!IsPlain(tensor.type)) return absl::OkStatus();
    if (tensor.rows() > 1) types.insert(BlockOf(tensor.type).name);
  }
  return absl::InvalidArgumentError(absl::StrCat("int8 multiplies quantised weights, and the matrices of ", file.path(),
                                                 " are ", absl::StrJoin(types, " and "), ": give auto, f32 or bf16"));
}

}  // namespace runahead
