#include "worker/format/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/format/json_value.h"
#include "worker/format/quoted.h"

namespace runahead {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMostHeader = 100'000'000;  // the format's own limit
constexpr size_t kMostTensors = size_t{1} << 17;
constexpr size_t kMostDims = 8;
constexpr size_t kMostNameBytes = 255;
constexpr char kFreeText[] = "__metadata__";
// An entry is an object with an array or two: three levels. Its values: itself, its type, two arrays, their numbers.
constexpr JsonLimits kHeaderLimits{.depth = 3, .values = kMostTensors * 10};

// Bytes of an element. Types that are not here are newer than this list; what they take cannot be checked.
struct DtypeSize {
  const char* name;
  int64_t bytes;
};
constexpr DtypeSize kDtypes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
                                 {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},     {"I32", 4},
                                 {"F32", 4},  {"U64", 8}, {"I64", 8}, {"F64", 8},     {"C64", 8}};

std::optional<int64_t> ElementBytes(const std::string& dtype) {
  for (const DtypeSize& known : kDtypes) {
    if (dtype == known.name) return known.bytes;
  }
  return std::nullopt;
}

class SafetensorsReader {
 public:
  SafetensorsReader(const std::string& path, absl::Span<const std::byte> bytes) : path_(path), bytes_(bytes) {}

  absl::StatusOr<Safetensors> Read() {
    absl::Status status = ReadLength();
    if (!status.ok()) return status;
    const absl::string_view text(reinterpret_cast<const char*>(head_.data()) + kLengthBytes,
                                 head_.size() - kLengthBytes);
    if (text.empty() || text[0] != '{') return Error("the header is no JSON object");
    const absl::StatusOr<JsonValue> header = ParseJson(text, absl::StrCat(path_, ": the header"), kHeaderLimits);
    if (!header.ok()) return header.status();
    if (header->object()->size() > kMostTensors) {
      return Error("the header has ", header->object()->size(), " tensors; at most ", kMostTensors, " are read");
    }
    Safetensors file{.entries = {}, .head = head_};
    for (const auto& [name, value] : *header->object()) {
      if (name == kFreeText) continue;
      status = ReadEntry(name, value, file.entries);
      if (!status.ok()) return status;
    }
    status = CheckPlaces(file.entries);
    if (!status.ok()) return status;
    return file;
  }

 private:
  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", parts...));
  }

  absl::Status ReadLength() {
    uint64_t length;
    if (bytes_.size() < sizeof(length)) {
      return Error("the file ends inside the header's length (", bytes_.size(), " bytes): it is truncated or damaged");
    }
    std::memcpy(&length, bytes_.data(), sizeof(length));  // little-endian, as are all machines we build for
    if (length > kMostHeader) {
      return Error("the header is said to have ", length, " bytes; at most ", kMostHeader,
                   " are read. Is this a safetensors file?");
    }
    if (length > bytes_.size() - kLengthBytes) {
      return Error("the file ends inside the header, which has ", length, " bytes: it is truncated or damaged");
    }
    head_ = bytes_.subspan(0, kLengthBytes + length);
    data_ = bytes_.subspan(head_.size());
    return absl::OkStatus();
  }

  absl::Status ReadEntry(const std::string& name, const JsonValue& value, std::vector<SafetensorsEntry>& entries) {
    if (name.empty() || name.size() > kMostNameBytes) {
      return Error("tensor ", Quoted(name), " has a name of ", name.size(), " bytes; 1 to ", kMostNameBytes,
                   " are allowed");
    }
    const std::string where = absl::StrCat("tensor ", Quoted(name));
    const JsonValue* dtype = value.Find("dtype");
    if (dtype == nullptr || dtype->text() == nullptr) return Error(where, " has no dtype that is a text");
    SafetensorsEntry entry{.name = name, .dtype = *dtype->text(), .shape = {}, .data = {}};
    absl::StatusOr<int64_t> elements = ReadShape(where, value.Find("shape"), entry.shape);
    if (!elements.ok()) return elements.status();
    const absl::Status status = ReadOffsets(where, value.Find("data_offsets"), entry.data);
    if (!status.ok()) return status;
    const std::optional<int64_t> element_bytes = ElementBytes(entry.dtype);
    // No overflow: ReadShape bounds the elements for eight bytes each.
    if (element_bytes && static_cast<uint64_t>(*elements * *element_bytes) != entry.data.size()) {
      return Error(where, " is ", Quoted(entry.dtype), " [", absl::StrJoin(entry.shape, ", "), "], which takes ",
                   *elements * *element_bytes, " bytes, but its offsets are of ", entry.data.size());
    }
    entries.push_back(std::move(entry));
    return absl::OkStatus();
  }

  // How many elements the shape has.
  absl::StatusOr<int64_t> ReadShape(const std::string& where, const JsonValue* value, std::vector<int64_t>& shape) {
    if (value == nullptr || value->array() == nullptr) return Error(where, " has no shape that is an array");
    if (value->array()->size() > kMostDims) {
      return Error(where, " has ", value->array()->size(), " dimensions; at most ", kMostDims, " are read");
    }
    constexpr int64_t kMostElements = std::numeric_limits<int64_t>::max() / 8;
    int64_t most = 1;  // as if those of 0 were of 1
    bool empty = false;
    for (const JsonValue& dim : *value->array()) {
      if (dim.integer() == nullptr || *dim.integer() < 0) {
        return Error(where, " has a dimension that is no whole number from 0 on");
      }
      if (*dim.integer() > kMostElements / most) return Error(where, " has the impossible dimension ", *dim.integer());
      empty |= *dim.integer() == 0;
      most *= std::max<int64_t>(*dim.integer(), 1);
      shape.push_back(*dim.integer());
    }
    return empty ? 0 : most;
  }

  absl::Status ReadOffsets(const std::string& where, const JsonValue* value, absl::Span<const std::byte>& data) {
    if (value == nullptr || value->array() == nullptr || value->array()->size() != 2) {
      return Error(where, " has no data_offsets of two numbers");
    }
    const int64_t* begin = value->array()->front().integer();
    const int64_t* end = value->array()->back().integer();
    if (begin == nullptr || end == nullptr || *begin < 0 || *end < *begin) {
      return Error(where, " has data_offsets that are no rising whole numbers from 0 on");
    }
    if (static_cast<uint64_t>(*end) > data_.size()) {
      return Error(where, " ends at offset ", *end, " of the data, which has ", data_.size(),
                   " bytes: the file is truncated or damaged");
    }
    data = data_.subspan(*begin, *end - *begin);
    return absl::OkStatus();
  }

  // Tensors fill the data from its begin to its end, as the format asks: neither gaps nor bytes of two.
  absl::Status CheckPlaces(std::vector<SafetensorsEntry>& entries) const {
    std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
      return std::pair(a.data.data(), a.data.size()) < std::pair(b.data.data(), b.data.size());
    });
    const std::byte* filled = data_.data();
    for (size_t i = 0; i < entries.size(); ++i) {
      const absl::Span<const std::byte> data = entries[i].data;
      if (data.data() < filled) {
        return Error("tensors ", Quoted(entries[i - 1].name), " and ", Quoted(entries[i].name), " overlap");
      }
      if (data.data() > filled) {
        return Error("bytes before tensor ", Quoted(entries[i].name), " are of no tensor: the file is damaged");
      }
      filled = data.data() + data.size();
    }
    if (filled == data_.data() + data_.size()) return absl::OkStatus();
    return Error("the last ", data_.data() + data_.size() - filled, " bytes are of no tensor: the file is damaged");
  }

  const std::string& path_;
  const absl::Span<const std::byte> bytes_;
  absl::Span<const std::byte> head_, data_;
};

}  // namespace

absl::StatusOr<Safetensors> ReadSafetensors(const std::string& path, absl::Span<const std::byte> bytes) {
  return SafetensorsReader(path, bytes).Read();
}

std::vector<float> RoundedToF32(absl::Span<const std::byte> doubles) {
  std::vector<float> rounded(doubles.size() / sizeof(double));
  for (size_t i = 0; i < rounded.size(); ++i) {
    double value;  // it may lie unaligned
    std::memcpy(&value, doubles.data() + i * sizeof(value), sizeof(value));
    rounded[i] = static_cast<float>(value);
  }
  return rounded;
}

absl::StatusOr<FileTensor> ToFileTensor(const SafetensorsEntry& entry, const std::string& path, std::string name) {
  const auto refuse = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", Quoted(entry.name), " ", why));
  };
  FileTensor tensor;
  if (entry.dtype == "F32") {
    tensor.type = WeightType::kF32;
  } else if (entry.dtype == "F16") {
    tensor.type = WeightType::kF16;
  } else if (entry.dtype == "BF16") {
    tensor.type = WeightType::kBF16;
  } else {
    return refuse(
        absl::StrCat("is of type ", Quoted(entry.dtype), ", which cannot be read; F64, F32, F16 and BF16 can"));
  }
  if (entry.shape.empty() || entry.shape.size() > 4) {
    return refuse(absl::StrCat("has ", entry.shape.size(), " dimensions; 1 to 4 are read"));
  }
  if (entry.data.empty()) return refuse("has no elements");
  tensor.name = std::move(name);
  tensor.dims.assign(entry.shape.rbegin(), entry.shape.rend());
  tensor.data = entry.data;
  tensor.stored_as = absl::StrCat(path, ": ", entry.name);
  return tensor;
}

}  // namespace runahead
