#include "tests/testing/gguf_builder.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/format/model_file.h"

namespace runahead {
namespace {

template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

uint32_t TypeNumber(MetadataValue::Type type) {
  return static_cast<uint32_t>(type);
}

std::string ArrayHead(MetadataValue::Type element, size_t count) {
  return Bytes(TypeNumber(element)) + Bytes<uint64_t>(count);
}

void Pad(std::string& bytes, uint64_t alignment) {
  bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0');
}

}  // namespace

std::string GgufBuilder::Number(uint32_t value) {
  return Bytes(value);
}
std::string GgufBuilder::Number(uint64_t value) {
  return Bytes(value);
}
std::string GgufBuilder::Text(const std::string& value) {
  return Bytes<uint64_t>(value.size()) + value;
}

void GgufBuilder::AddRaw(const std::string& key, uint32_t type, const std::string& bytes) {
  absl::StrAppend(&metadata_, Text(key), Number(type), bytes);
  ++keys_;
}

void GgufBuilder::AddString(const std::string& key, const std::string& value) {
  AddRaw(key, TypeNumber(MetadataValue::Type::kString), Text(value));
}
void GgufBuilder::AddUint32(const std::string& key, uint32_t value) {
  AddRaw(key, TypeNumber(MetadataValue::Type::kUint32), Bytes(value));
}
void GgufBuilder::AddUint64(const std::string& key, uint64_t value) {
  AddRaw(key, TypeNumber(MetadataValue::Type::kUint64), Bytes(value));
}
void GgufBuilder::AddInt32(const std::string& key, int32_t value) {
  AddRaw(key, TypeNumber(MetadataValue::Type::kInt32), Bytes(value));
}
void GgufBuilder::AddFloat(const std::string& key, float value) {
  AddRaw(key, TypeNumber(MetadataValue::Type::kFloat32), Bytes(value));
}
void GgufBuilder::AddBool(const std::string& key, bool value) {
  AddRaw(key, TypeNumber(MetadataValue::Type::kBool), Bytes<uint8_t>(value ? 1 : 0));
}

void GgufBuilder::AddStrings(const std::string& key, const std::vector<std::string>& values) {
  std::string bytes = ArrayHead(MetadataValue::Type::kString, values.size());
  for (const std::string& value : values) bytes += Text(value);
  AddRaw(key, TypeNumber(MetadataValue::Type::kArray), bytes);
}

void GgufBuilder::AddInts(const std::string& key, const std::vector<int32_t>& values) {
  std::string bytes = ArrayHead(MetadataValue::Type::kInt32, values.size());
  for (int32_t value : values) bytes += Bytes(value);
  AddRaw(key, TypeNumber(MetadataValue::Type::kArray), bytes);
}

void GgufBuilder::AddFloats(const std::string& key, const std::vector<float>& values) {
  std::string bytes = ArrayHead(MetadataValue::Type::kFloat32, values.size());
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  AddRaw(key, TypeNumber(MetadataValue::Type::kArray), bytes);
}

void GgufBuilder::AddBools(const std::string& key, const std::vector<bool>& values) {
  std::string bytes = ArrayHead(MetadataValue::Type::kBool, values.size());
  for (const bool value : values) bytes += value ? '\1' : '\0';
  AddRaw(key, TypeNumber(MetadataValue::Type::kArray), bytes);
}

void GgufBuilder::AddTensorEntry(const std::string& name, uint32_t type, const std::vector<uint64_t>& dims,
                                 uint64_t offset) {
  absl::StrAppend(&table_, Text(name), Bytes(static_cast<uint32_t>(dims.size())));
  for (uint64_t dim : dims) table_ += Bytes(dim);
  absl::StrAppend(&table_, Bytes(type), Bytes(offset));
  ++tensors_;
}

void GgufBuilder::AddTensor(const std::string& name, WeightType type, const std::vector<int64_t>& dims,
                            std::string data) {
  if (!data_.empty()) {
    data_bytes_ -= data_.back().size();
    Pad(data_.back(), alignment_);
    data_bytes_ += data_.back().size();
  }
  AddTensorEntry(name, static_cast<uint32_t>(type), std::vector<uint64_t>(dims.begin(), dims.end()), data_bytes_);
  data_bytes_ += data.size();
  data_.push_back(std::move(data));
}

std::string GgufBuilder::Head() const {
  std::string head = absl::StrCat("GGUF", Bytes(header_.version), Bytes<uint64_t>(tensors_ + header_.extra_tensors),
                                  Bytes<uint64_t>(keys_ + header_.extra_keys), metadata_, table_);
  Pad(head, alignment_);
  return head;
}

std::string GgufBuilder::Build() const {
  std::string file = Head();
  file.reserve(file.size() + data_bytes_);
  for (const std::string& data : data_) file += data;
  return file;
}

absl::Status GgufBuilder::Write(const std::string& path) const {
  const std::string temporary = absl::StrCat(path, ".tmp-", getpid());
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out << Head();
  for (const std::string& data : data_) out << data;
  out.close();
  if (!out || std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    return absl::UnavailableError(absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

}  // namespace runahead
