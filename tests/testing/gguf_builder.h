// Writes GGUF files for tests: well-formed ones, and on demand hostile ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/weight_type.h"

namespace runahead {

// Collects metadata and tensors and lays them out as one file. Checks nothing: what goes in comes out.
class GgufBuilder {
 public:
  // The header's fields, where they shall differ from what was added.
  struct Header {
    uint32_t version = 3;
    int64_t extra_keys = 0;     // announced beyond those that follow
    int64_t extra_tensors = 0;  // likewise
  };

  explicit GgufBuilder(uint64_t alignment = 32) : alignment_(alignment) {}

  Header& header() { return header_; }

  void AddString(const std::string& key, const std::string& value);
  void AddUint32(const std::string& key, uint32_t value);
  void AddUint64(const std::string& key, uint64_t value);
  void AddInt32(const std::string& key, int32_t value);
  void AddFloat(const std::string& key, float value);
  void AddBool(const std::string& key, bool value);
  void AddStrings(const std::string& key, const std::vector<std::string>& values);
  void AddInts(const std::string& key, const std::vector<int32_t>& values);
  void AddFloats(const std::string& key, const std::vector<float>& values);
  void AddBools(const std::string& key, const std::vector<bool>& values);
  // Any value: the file's number of its type, then `bytes` as they are.
  void AddRaw(const std::string& key, uint32_t type, const std::string& bytes);

  // `dims` in the file's order (columns first). The data goes to the next aligned offset.
  void AddTensor(const std::string& name, WeightType type, const std::vector<int64_t>& dims, std::string data);
  // A table entry as given, without data of its own.
  void AddTensorEntry(const std::string& name, uint32_t type, const std::vector<uint64_t>& dims, uint64_t offset);

  // Header, metadata and tensor table, padded to where the tensors' data begins.
  std::string Head() const;
  // The whole file.
  std::string Build() const;
  // Build() into `path`, without holding the file in memory twice. The file takes its name when it is whole: a test
  // that runs beside this one may have the one before mapped.
  absl::Status Write(const std::string& path) const;

  // The bytes of `value` as the file has them, for AddRaw.
  static std::string Number(uint32_t value);
  static std::string Number(uint64_t value);
  static std::string Text(const std::string& value);

 private:
  uint64_t alignment_;
  Header header_;
  uint64_t keys_ = 0;
  uint64_t tensors_ = 0;
  std::string metadata_;
  std::string table_;
  std::vector<std::string> data_;  // each but the last padded to the alignment
  uint64_t data_bytes_ = 0;
};

}  // namespace runahead
