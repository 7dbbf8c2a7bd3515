// The keys in which a GGUF says what model it holds, checked.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/format/model_file.h"
#include "worker/model/model.h"

namespace runahead {

// Keys of one architecture: "llama.block_count" is `block_count` here. It notes what it is asked for, so it is for one
// thread. Errors name file and key: NOT_FOUND where it is missing, else INVALID_ARGUMENT.
class ConfigKeys {
 public:
  // `file` outlives the keys.
  ConfigKeys(const ModelFile& file, std::string_view architecture)
      : file_(file), architecture_(architecture), prefix_(architecture_ + ".") {}
  ConfigKeys(const ConfigKeys&) = delete;
  ConfigKeys& operator=(const ConfigKeys&) = delete;

  // What all families have: name, fingerprint, layers, hidden, heads (kv_heads as many), ffn, context_length, and the
  // vocabulary, which is the height of tensor token_embd.weight.
  absl::StatusOr<ModelConfig> Common() const;

  // What families with grouped heads and rotary positions have: kv_heads, head_dim, rotated.
  absl::Status ReadHeads(ModelConfig& config) const;
  absl::StatusOr<float> RopeBase(float otherwise) const;

  const ModelFile& file() const { return file_; }
  const std::string& architecture() const { return architecture_; }
  const std::string& prefix() const { return prefix_; }  // of the file's keys
  // The file's keys of this architecture that nothing here was asked for, whole, in the order of their names.
  std::vector<ModelFile::Entry> Unasked() const;

  bool Has(std::string_view name) const { return file_.Has(Key(name)); }
  // 1 to `most`.
  absl::StatusOr<int64_t> Dimension(std::string_view name, int64_t most = kMostDimension) const;
  absl::StatusOr<int64_t> DimensionOr(std::string_view name, int64_t otherwise) const;
  // 0 to the most that a dimension may be.
  absl::StatusOr<int64_t> Number(std::string_view name) const;
  absl::StatusOr<float> Float(std::string_view name) const;
  absl::StatusOr<float> NotNegative(std::string_view name) const;
  absl::StatusOr<float> FloatOr(std::string_view name, float otherwise) const;
  absl::StatusOr<bool> BoolOr(std::string_view name, bool otherwise) const;
  absl::StatusOr<std::vector<bool>> Bools(std::string_view name) const { return file_.GetBools(Key(name)); }
  // Whether it is there and an array of booleans.
  bool HasBools(std::string_view name) const { return Bools(name).ok(); }
  absl::StatusOr<std::string> String(std::string_view name) const { return file_.GetString(Key(name)); }
  absl::Status Refuse(std::string_view name, std::string_view why) const;

 private:
  // Larger sizes are not models, and their products would overflow.
  static constexpr int64_t kMostDimension = int64_t{1} << 24;

  const std::string& Key(std::string_view name) const { return *asked_.insert(prefix_ + std::string(name)).first; }

  const ModelFile& file_;
  const std::string architecture_, prefix_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace runahead
