#include "worker/format/metadata_writer.h"

namespace runahead {

namespace {

using Type = MetadataValue::Type;

}  // namespace

void MetadataWriter::Uint(absl::string_view key, uint64_t value) {
  Put(key, {Type::kUint64, Type::kUint64, 1, Keep(&value, sizeof(value))});
}

void MetadataWriter::Float(absl::string_view key, double value) {
  Put(key, {Type::kFloat64, Type::kFloat64, 1, Keep(&value, sizeof(value))});
}

void MetadataWriter::Bool(absl::string_view key, bool value) {
  const uint8_t byte = value ? 1 : 0;
  Put(key, {Type::kBool, Type::kBool, 1, Keep(&byte, sizeof(byte))});
}

void MetadataWriter::String(absl::string_view key, absl::string_view value) {
  Text(key, Keep(value.data(), value.size()));
}

void MetadataWriter::Ints(absl::string_view key, const std::vector<int64_t>& values) {
  Put(key, {Type::kArray, Type::kInt64, values.size(), Keep(values.data(), values.size() * sizeof(int64_t))});
}

void MetadataWriter::Bools(absl::string_view key, const std::vector<bool>& values) {
  const std::string bytes(values.begin(), values.end());
  Put(key, {Type::kArray, Type::kBool, values.size(), Keep(bytes.data(), bytes.size())});
}

void MetadataWriter::Text(absl::string_view key, absl::Span<const std::byte> text) {
  Put(key, {Type::kString, Type::kString, 1, text});
}

void MetadataWriter::Put(absl::string_view key, MetadataValue value) {
  const absl::Span<const std::byte> kept = Keep(key.data(), key.size());
  values_.insert_or_assign(absl::string_view(reinterpret_cast<const char*>(kept.data()), kept.size()), value);
}

absl::Span<const std::byte> MetadataWriter::Keep(const void* bytes, size_t size) {
  const std::string& kept = kept_.emplace_back(static_cast<const char*>(bytes), size);
  return {reinterpret_cast<const std::byte*>(kept.data()), kept.size()};
}

}  // namespace runahead
