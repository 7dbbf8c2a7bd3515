// Opening a GGUF file: everything the file claims is checked here, once, so that the getters need not.
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/format/gguf.h"
#include "worker/format/gguf_cursor.h"
#include "worker/format/gguf_split.h"
#include "worker/format/gguf_types.h"
#include "worker/format/mapped_file.h"
#include "worker/format/quoted.h"
#include "xxhash.h"

namespace runahead {
namespace {

using Type = MetadataValue::Type;

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
// Far above any real model; they bound the tables that a hostile file can make us build.
constexpr uint64_t kMaxKeys = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 17;
constexpr size_t kMaxKeyBytes = 65535;  // the format's own limit
constexpr size_t kMaxNameBytes = 255;   // the format asks for 64 at most
constexpr uint32_t kMaxDims = 4;        // likewise
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 65536;
// The smallest entry: key length, one byte of key, type, one byte of value; name length, one byte, rank, one
// dimension, type, offset.
constexpr size_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr size_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

// Bytes of one value of a fixed-size type, 0 for strings and arrays.
size_t FixedBytes(Type type) {
  switch (type) {
    case Type::kUint8:
    case Type::kInt8:
    case Type::kBool:
      return 1;
    case Type::kUint16:
    case Type::kInt16:
      return 2;
    case Type::kUint32:
    case Type::kInt32:
    case Type::kFloat32:
      return 4;
    case Type::kUint64:
    case Type::kInt64:
    case Type::kFloat64:
      return 8;
    case Type::kString:
    case Type::kArray:
      return 0;
  }
  return 0;
}

}  // namespace

// Reads one file image into a ModelFile. Used once.
class GgufParser {
 public:
  static absl::StatusOr<std::shared_ptr<const ModelFile>> Parse(std::string name, absl::Span<const std::byte> bytes,
                                                                std::shared_ptr<const void> owner,
                                                                std::vector<ModelFile::Part> parts) {
    std::shared_ptr<ModelFile> file(new ModelFile(ModelFile::Container::kGguf));
    file->parts_ = std::move(parts);
    file->path_ = std::move(name);
    file->owner_ = std::move(owner);
    if (absl::Status status = GgufParser(*file, bytes).Run(); !status.ok()) return status;
    return file;
  }

 private:
  GgufParser(ModelFile& file, absl::Span<const std::byte> bytes) : file_(file), bytes_(bytes), cursor_(bytes) {}

  absl::Status Run() {
    absl::Status status = ReadHeader();
    for (uint64_t i = 0; status.ok() && i < key_count_; ++i) status = ReadKey(i);
    if (status.ok()) status = ReadAlignment();
    for (uint64_t i = 0; status.ok() && i < tensor_count_; ++i) status = ReadTensor(i);
    if (status.ok()) status = PlaceTensors();
    if (!status.ok()) return status;
    file_.weight_files_ = {bytes_};
    const uint64_t size = bytes_.size();
    file_.fingerprint_ = XXH64(&size, sizeof(size), XXH64(bytes_.data(), cursor_.position(), /*seed=*/0));
    return absl::OkStatus();
  }

  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    return absl::InvalidArgumentError(absl::StrCat(file_.path_, ": ", parts...));
  }

  absl::Status Truncated(absl::string_view where) const {
    return Error("the file ends inside ", where, " (", bytes_.size(), " bytes): it is truncated or damaged");
  }

  absl::Status ReadHeader() {
    const std::optional<uint32_t> magic = cursor_.Number<uint32_t>();
    if (!magic || *magic != kMagic) return Error("this is not a GGUF file: it does not begin with 'GGUF'");
    const std::optional<uint32_t> version = cursor_.Number<uint32_t>();
    const std::optional<uint64_t> tensors = cursor_.Number<uint64_t>();
    const std::optional<uint64_t> keys = cursor_.Number<uint64_t>();
    if (version && (*version & 0xffff) == 0) return Error("a big-endian GGUF file cannot be read: convert it");
    if (version && *version != 2 && *version != 3) {
      return Error("GGUF version ", *version, " cannot be read; versions 2 and 3 can");
    }
    if (!version || !tensors || !keys) return Truncated("the header");
    if (*keys > kMaxKeys || *keys > cursor_.remaining() / kMinKeyBytes) {
      return Error("the header announces ", *keys, " metadata keys, more than the file can hold");
    }
    if (*tensors > kMaxTensors || *tensors > cursor_.remaining() / kMinTensorBytes) {
      return Error("the header announces ", *tensors, " tensors, more than the file can hold");
    }
    key_count_ = *keys;
    tensor_count_ = *tensors;
    return absl::OkStatus();
  }

  absl::Status ReadKey(uint64_t index) {
    const std::optional<absl::string_view> key = cursor_.String();
    if (!key) return Truncated(absl::StrCat("the name of metadata key ", index + 1, " of ", key_count_));
    if (key->empty() || key->size() > kMaxKeyBytes) {
      return Error("the name of metadata key ", index + 1, " has ", key->size(), " bytes; 1 to ", kMaxKeyBytes,
                   " are allowed");
    }
    const std::string where = absl::StrCat("metadata key ", Quoted(*key));
    const std::optional<uint32_t> type = cursor_.Number<uint32_t>();
    if (!type) return Truncated(where);
    if (*type > static_cast<uint32_t>(Type::kFloat64)) return Error(where, " has the unknown type ", *type);

    MetadataValue value = {static_cast<Type>(*type), static_cast<Type>(*type), 1, {}};
    if (value.type == Type::kArray) {
      if (absl::Status status = ReadArrayHeader(where, value); !status.ok()) return status;
    }
    if (absl::Status status = ReadElements(where, value); !status.ok()) return status;
    if (value.type == Type::kString && !absl::StartsWith(*key, "tokenizer.")) Clean(*key, value);
    if (!file_.metadata_.emplace(*key, value).second) return Error(where, " appears twice");
    return absl::OkStatus();
  }

  absl::Status ReadArrayHeader(const std::string& where, MetadataValue& value) {
    const std::optional<uint32_t> element = cursor_.Number<uint32_t>();
    const std::optional<uint64_t> count = cursor_.Number<uint64_t>();
    if (!element || !count) return Truncated(where);
    if (*element == static_cast<uint32_t>(Type::kArray))
      return Error(where, " is an array of arrays, which is not read");
    if (*element > static_cast<uint32_t>(Type::kFloat64))
      return Error(where, " has elements of the unknown type ", *element);
    value.element = static_cast<Type>(*element);
    value.count = *count;
    // A string takes at least the eight bytes of its length.
    const size_t least = value.element == Type::kString ? sizeof(uint64_t) : FixedBytes(value.element);
    if (*count > cursor_.remaining() / least)
      return Error(where, " announces ", *count, " elements, more than the file can hold");
    return absl::OkStatus();
  }

  // What is no text stays none of it: names go where only text may stand. Those of tokenizer.* are checked by who reads
  // them, for whom bytes count.
  void Clean(absl::string_view key, MetadataValue& value) {
    const absl::string_view text(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
    const bool is_name = key == "general.name";
    std::string shown = is_name ? CleanName(text) : CleanText(text);
    if (shown == text) return;
    if (is_name) {
      file_.remarks_.push_back(absl::StrCat(file_.path_, ": metadata key '", key,
                                            "' is no name that can be shown everywhere; the model is called ", shown));
    }
    const std::string& kept = file_.cleaned_.emplace_back(std::move(shown));
    value.bytes = {reinterpret_cast<const std::byte*>(kept.data()), kept.size()};
  }

  // Walks over the value's elements and keeps the bytes that they take.
  absl::Status ReadElements(const std::string& where, MetadataValue& value) {
    const size_t start = cursor_.position();
    if (value.element == Type::kString) {
      for (uint64_t i = 0; i < value.count; ++i) {
        if (!cursor_.String()) return Truncated(where);
      }
    } else if (!cursor_.Take(value.count * FixedBytes(value.element))) {
      return Truncated(where);
    }
    const size_t length = value.type == Type::kString ? sizeof(uint64_t) : 0;
    value.bytes = bytes_.subspan(start + length, cursor_.position() - start - length);
    if (value.element == Type::kBool &&
        std::any_of(value.bytes.begin(), value.bytes.end(), [](std::byte b) { return b > std::byte{1}; })) {
      return Error(where, " is a boolean that is neither 0 nor 1");
    }
    return absl::OkStatus();
  }

  absl::Status ReadAlignment() {
    constexpr absl::string_view kKey = "general.alignment";
    if (!file_.Has(kKey)) return absl::OkStatus();
    const absl::StatusOr<uint64_t> alignment = file_.GetUint(kKey);
    if (!alignment.ok()) return alignment.status();
    if (*alignment == 0 || *alignment > kMaxAlignment || (*alignment & (*alignment - 1)) != 0) {
      return Error("metadata key '", kKey, "' is ", *alignment, "; it must be a power of two up to ", kMaxAlignment);
    }
    alignment_ = *alignment;
    return absl::OkStatus();
  }

  absl::Status ReadTensor(uint64_t index) {
    const std::optional<absl::string_view> name = cursor_.String();
    if (!name) return Truncated(absl::StrCat("the name of tensor ", index + 1, " of ", tensor_count_));
    if (name->empty() || name->size() > kMaxNameBytes) {
      return Error("the name of tensor ", index + 1, " has ", name->size(), " bytes; 1 to ", kMaxNameBytes,
                   " are allowed");
    }
    const std::string where = absl::StrCat("tensor ", Quoted(*name));
    if (CleanText(*name) != *name) return Error(where, " has a name that is no text; no model has such");
    FileTensor tensor;
    tensor.name = std::string(*name);
    if (absl::Status status = ReadDims(where, tensor.dims); !status.ok()) return status;
    const std::optional<uint32_t> type = cursor_.Number<uint32_t>();
    const std::optional<uint64_t> offset = cursor_.Number<uint64_t>();
    if (!type || !offset) return Truncated(where);
    const std::optional<WeightType> known = WeightTypeFromGguf(*type);
    if (!known) {
      return Error(where, " has the type ", GgufTypeName(*type), ", which cannot be read; convert the model to one of ",
                   SupportedGgufTypes());
    }
    tensor.type = *known;
    if (!file_.tensor_index_.emplace(*name, file_.tensors_.size()).second) return Error(where, " appears twice");
    file_.tensors_.push_back(std::move(tensor));
    offsets_.push_back(*offset);
    return absl::OkStatus();
  }

  absl::Status ReadDims(const std::string& where, std::vector<int64_t>& dims) {
    const std::optional<uint32_t> rank = cursor_.Number<uint32_t>();
    if (!rank) return Truncated(where);
    if (*rank == 0 || *rank > kMaxDims)
      return Error(where, " has ", *rank, " dimensions; 1 to ", kMaxDims, " are allowed");
    int64_t elements = 1;
    for (uint32_t i = 0; i < *rank; ++i) {
      const std::optional<uint64_t> dim = cursor_.Number<uint64_t>();
      if (!dim) return Truncated(where);
      // Eight bytes is the largest element: the tensor's bytes must fit a signed 64-bit integer, too.
      constexpr uint64_t kMaxElements = std::numeric_limits<int64_t>::max() / 8;
      if (*dim == 0 || *dim > kMaxElements / static_cast<uint64_t>(elements)) {
        return Error(where, " has the impossible dimension ", *dim);
      }
      elements *= static_cast<int64_t>(*dim);
      dims.push_back(static_cast<int64_t>(*dim));
    }
    return absl::OkStatus();
  }

  // Gives every tensor its bytes in the data section, which begins at the next multiple of the alignment.
  absl::Status PlaceTensors() {
    if (tensor_count_ == 0) return absl::OkStatus();
    const uint64_t begin = (cursor_.position() + alignment_ - 1) / alignment_ * alignment_;
    const uint64_t available = begin < bytes_.size() ? bytes_.size() - begin : 0;
    for (size_t i = 0; i < file_.tensors_.size(); ++i) {
      FileTensor& tensor = file_.tensors_[i];
      const std::string where = absl::StrCat("tensor ", Quoted(tensor.name));
      const int64_t block = BlockOf(tensor.type).elements;
      if (tensor.columns() % block != 0) {
        return Error(where, " has rows of ", tensor.columns(), " elements; type ", BlockOf(tensor.type).name,
                     " needs a multiple of ", block);
      }
      if (offsets_[i] % alignment_ != 0) {
        return Error(where, " begins at offset ", offsets_[i], ", which is no multiple of the alignment ", alignment_);
      }
      // No overflow: elements were bounded in ReadDims, and no type takes more than eight bytes an element.
      const uint64_t size = WeightRowBytes(tensor.type, tensor.columns()) * static_cast<uint64_t>(tensor.rows());
      if (offsets_[i] > available || size > available - offsets_[i]) {
        return Error(where, " takes ", size, " bytes at offset ", offsets_[i], " of the data section, which has ",
                     available, ": the file is truncated or damaged");
      }
      tensor.data = bytes_.subspan(begin + offsets_[i], size);
    }
    return CheckOverlap();
  }

  absl::Status CheckOverlap() const {
    std::vector<const FileTensor*> order;
    for (const FileTensor& tensor : file_.tensors_) order.push_back(&tensor);
    std::sort(order.begin(), order.end(),
              [](const FileTensor* a, const FileTensor* b) { return a->data.data() < b->data.data(); });
    for (size_t i = 1; i < order.size(); ++i) {
      if (order[i - 1]->data.data() + order[i - 1]->data.size() > order[i]->data.data()) {
        return Error("tensors ", Quoted(order[i - 1]->name), " and ", Quoted(order[i]->name), " overlap");
      }
    }
    return absl::OkStatus();
  }

  ModelFile& file_;
  const absl::Span<const std::byte> bytes_;
  GgufCursor cursor_;
  uint64_t key_count_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  std::vector<uint64_t> offsets_;  // of the tensors, from the begin of the data section
};

absl::StatusOr<std::shared_ptr<const ModelFile>> OpenGguf(const std::string& path) {
  absl::StatusOr<std::shared_ptr<const ModelFile>> file = OpenGgufFile(path);
  if (!file.ok()) return file.status();
  return WithOtherFiles(*std::move(file));
}

absl::StatusOr<std::shared_ptr<const ModelFile>> OpenGgufFile(const std::string& path) {
  absl::StatusOr<std::shared_ptr<const MappedFile>> mapped = MappedFile::Open(path);
  if (!mapped.ok()) return mapped.status();
  const absl::Span<const std::byte> bytes = (*mapped)->bytes();
  const ModelFile::Part part{path, (*mapped)->numbers()};
  return GgufParser::Parse(path, bytes, *std::move(mapped), {part});
}

absl::StatusOr<std::shared_ptr<const ModelFile>> ParseGguf(std::string name, absl::Span<const std::byte> bytes,
                                                           std::shared_ptr<const void> owner) {
  return GgufParser::Parse(std::move(name), bytes, std::move(owner), {});
}

}  // namespace runahead
