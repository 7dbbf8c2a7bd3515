// A model as it is stored: metadata and tensors, whatever the container. Keys and names are GGUF's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/base/weight_type.h"

namespace runahead {

// One tensor. `data` points into the mapping of a file and lives as long as the ModelFile; it is aligned to the file's
// alignment only, so read multi-byte values with memcpy.
struct FileTensor {
  std::string name;
  WeightType type;
  std::vector<int64_t> dims;  // GGUF's order: dims[0] is the row length (columns) and varies fastest; 1 to 4 of them
  absl::Span<const std::byte> data;
  std::string stored_as = {};  // where it lies in a folder: the file, and what it is called there

  int64_t columns() const { return dims[0]; }
  int64_t rows() const;  // the product of all dims but the first
};

// One metadata value as GGUF files have it. Checked when the file was opened.
struct MetadataValue {
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
  Type element;    // of arrays; otherwise the same as `type`
  uint64_t count;  // of an array's elements; otherwise 1
  // The elements, one after the other; those that are strings each behind a 64-bit length. Of a single string: its
  // text.
  absl::Span<const std::byte> bytes;
};

// An open model. Everything it says about itself was checked against the files' sizes when it was opened, so the views
// it gives never leave them. Immutable, hence safe for any number of threads. Errors name the file and the key or
// tensor; no input crashes it or makes it allocate more than a small multiple of the files' own size.
class ModelFile {
 public:
  // A folder's tensors have GGUF's names, and the numbers and rows that they have in the folder: Q and K are not
  // permuted, norms of Gemma lack the 1, Falcon's Q, K and V lie in groups.
  enum class Container { kGguf, kFolder };
  // One file of it, and what changes when it is written to or another takes its place (FileNumbers).
  struct Part {
    std::string path;
    std::string numbers;
  };

  Container container() const { return container_; }

  bool Has(absl::string_view key) const;

  // Typed metadata. All texts but those of tokenizer.* are fit to be shown (CleanText, quoted.h), whatever the file
  // has. NOT_FOUND when the key is missing, INVALID_ARGUMENT when it has another type or does not fit.
  absl::StatusOr<std::string> GetString(absl::string_view key) const;
  absl::StatusOr<uint64_t> GetUint(absl::string_view key) const;  // any integer type; negative values are refused
  absl::StatusOr<double> GetFloat(absl::string_view key) const;   // 32 or 64 bit; not finite is refused
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  absl::StatusOr<std::vector<absl::string_view>> GetStrings(
      absl::string_view key) const;                                            // views live as long as *this
  absl::StatusOr<std::vector<int64_t>> GetInts(absl::string_view key) const;   // an array of any integer type
  absl::StatusOr<std::vector<double>> GetFloats(absl::string_view key) const;  // of either width; all are finite
  absl::StatusOr<std::vector<bool>> GetBools(absl::string_view key) const;

  // A key with its value. Views live as long as *this.
  struct Entry {
    absl::string_view key;
    MetadataValue value;
  };
  // Those whose keys begin with `prefix`, in the order of their names.
  std::vector<Entry> Entries(absl::string_view prefix) const;

  // NOT_FOUND names the tensor. The pointer lives as long as *this.
  absl::StatusOr<const FileTensor*> FindTensor(absl::string_view name) const;

  absl::Span<const FileTensor> tensors() const { return tensors_; }
  const std::string& path() const { return path_; }

  // What of the files is used otherwise than they say, or not at all: for people, one sentence each.
  absl::Span<const std::string> remarks() const { return remarks_; }

  // The files that it was read from, as they were when they were opened; none where it was in memory already.
  absl::Span<const Part> parts() const { return parts_; }

  // The bytes of each file that holds weights, from the first to the last, in a fixed order.
  absl::Span<const absl::Span<const std::byte>> weight_files() const { return weight_files_; }

  // xxHash64 over all that the files say beside the weights: headers, metadata, tensor tables, texts of folders, and
  // the sizes of the files. Weights are not read for it: WeightsHash (worker/model/weights_hash.h) does that.
  uint64_t fingerprint() const { return fingerprint_; }
  // Likewise of the vocabulary and of the chat templates: of the keys tokenizer.*, of which those of templates begin
  // with tokenizer.chat_template. They name what differs where fingerprint() does.
  uint64_t tokenizer_fingerprint() const { return FingerprintOfTexts(/*templates=*/false); }
  uint64_t chat_template_fingerprint() const { return FingerprintOfTexts(/*templates=*/true); }

 private:
  friend class GgufParser;
  friend class GgufSplit;
  friend class FolderReader;

  explicit ModelFile(Container container) : container_(container) {}
  absl::StatusOr<const MetadataValue*> Find(absl::string_view key) const;
  uint64_t FingerprintOfTexts(bool templates) const;
  absl::Status WrongType(absl::string_view key, const MetadataValue& value, absl::string_view wanted) const;

  const Container container_;
  std::string path_;
  std::vector<Part> parts_;
  std::vector<absl::Span<const std::byte>> weight_files_;
  std::vector<std::string> remarks_;
  std::shared_ptr<const void> owner_;  // of what keys and values point into
  absl::flat_hash_map<absl::string_view, MetadataValue> metadata_;
  std::deque<std::string> cleaned_;  // of GGUF: texts of metadata that the file has otherwise; they do not move
  absl::flat_hash_map<std::string, std::string> absent_;  // what is said of a key that is missing, where it is known
  std::vector<FileTensor> tensors_;
  absl::flat_hash_map<absl::string_view, size_t> tensor_index_;
  uint64_t fingerprint_ = 0;
};

// Ids below it are those that the model takes and draws: the rows of its table of tokens, and of its head. A tokenizer
// may have more of them, or fewer, for tables are padded. NOT_FOUND: the file has no table.
absl::StatusOr<int64_t> VocabularySize(const ModelFile& file);

// Whether more than half of the elements of its tensors are of quantised types.
bool MostlyQuantised(const ModelFile& file);
// INVALID_ARGUMENT, with the file, what its matrices are and what to give instead, where none is quantised: then dtype
// int8 would multiply nothing in 8 bits.
absl::Status CheckTakesInt8(const ModelFile& file);

}  // namespace runahead
