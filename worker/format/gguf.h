// Reader of GGUF containers (versions 2 and 3): metadata and tensors of one model file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/format/gguf_types.h"

namespace runahead {

// One tensor of the file. `data` points into the file's mapping and lives as long as the GgufFile; it is aligned to the
// file's alignment only, so read multi-byte values with memcpy.
struct GgufTensor {
  std::string name;
  WeightType type;
  std::vector<int64_t>
      dims;  // the file's order: dims[0] is the row length (columns) and varies fastest; 1 to 4 of them
  absl::Span<const std::byte> data;

  int64_t columns() const { return dims[0]; }
  int64_t rows() const;  // the product of all dims but the first
};

// One metadata value as it lies in the file. Checked when the file was opened.
struct GgufValue {
  enum class Type : uint32_t {
    kUint8 = 0,
    kInt8 = 1,
    kUint16 = 2,
    kInt16 = 3,
    kUint32 = 4,
    kInt32 = 5,
    kFloat32 = 6,
    kBool = 7,
    kString = 8,
    kArray = 9,
    kUint64 = 10,
    kInt64 = 11,
    kFloat64 = 12,
  };
  Type type;
  Type element;                       // of arrays; otherwise the same as `type`
  uint64_t count;                     // of an array's elements; otherwise 1
  absl::Span<const std::byte> bytes;  // the elements, one after the other
};

// An open GGUF file. Everything it says about itself was checked against the file's size when it was opened, so the
// views it gives never leave the file. Immutable, hence safe for any number of threads. Errors name the file and the
// key or tensor; no input crashes it or makes it allocate more than a small multiple of the file's own size.
class GgufFile {
 public:
  // Maps the file. A tensor of a type that is not read makes opening fail, naming tensor and type.
  static absl::StatusOr<std::shared_ptr<const GgufFile>> Open(const std::string& path);

  // The same for a file that is in memory already; `owner` keeps `bytes` alive, `name` stands for the path in errors.
  static absl::StatusOr<std::shared_ptr<const GgufFile>> Parse(std::string name, absl::Span<const std::byte> bytes,
                                                               std::shared_ptr<const void> owner);

  bool Has(absl::string_view key) const { return metadata_.contains(key); }

  // Typed metadata. NOT_FOUND when the key is missing, INVALID_ARGUMENT when it has another type or does not fit.
  absl::StatusOr<std::string> GetString(absl::string_view key) const;
  absl::StatusOr<uint64_t> GetUint(absl::string_view key) const;  // any integer type; negative values are refused
  absl::StatusOr<double> GetFloat(absl::string_view key) const;   // 32 or 64 bit; not finite is refused
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  absl::StatusOr<std::vector<absl::string_view>> GetStrings(
      absl::string_view key) const;                                           // views live as long as *this
  absl::StatusOr<std::vector<int64_t>> GetInts(absl::string_view key) const;  // an array of any integer type

  // NOT_FOUND names the tensor. The pointer lives as long as *this.
  absl::StatusOr<const GgufTensor*> FindTensor(absl::string_view name) const;

  absl::Span<const GgufTensor> tensors() const { return tensors_; }
  const std::string& path() const { return path_; }

  // xxHash64 over header, metadata, tensor table and file size: what workers compare to agree on the model. Weights are
  // not read for it.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  friend class GgufParser;

  GgufFile() = default;
  absl::StatusOr<const GgufValue*> Find(absl::string_view key) const;
  absl::Status WrongType(absl::string_view key, const GgufValue& value, absl::string_view wanted) const;

  std::string path_;
  std::shared_ptr<const void> owner_;
  absl::flat_hash_map<absl::string_view, GgufValue> metadata_;  // keys point into the file
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<absl::string_view, size_t> tensor_index_;  // keys point into the file
  uint64_t fingerprint_ = 0;
};

// Whether more than half of the elements of its tensors are of quantised types.
bool MostlyQuantised(const GgufFile& file);

}  // namespace runahead
