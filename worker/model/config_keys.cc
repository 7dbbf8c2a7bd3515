#include "worker/model/config_keys.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "server/base/limits.h"

namespace runahead {
namespace {

constexpr int64_t kMaxHeadDim = 1024;

}  // namespace

absl::StatusOr<ModelConfig> ConfigKeys::Common() const {
  ModelConfig config;
  if (file_.Has("general.name")) {
    RUNAHEAD_ASSIGN_OR_RETURN(config.name, file_.GetString("general.name"));
  }
  if (config.name.empty()) config.name = architecture_;
  config.fingerprint = absl::StrFormat("%016x", file_.fingerprint());
  RUNAHEAD_ASSIGN_OR_RETURN(config.layers, Dimension("block_count"));
  RUNAHEAD_ASSIGN_OR_RETURN(config.hidden, Dimension("embedding_length"));
  RUNAHEAD_ASSIGN_OR_RETURN(config.heads, Dimension("attention.head_count"));
  config.kv_heads = config.heads;
  RUNAHEAD_ASSIGN_OR_RETURN(config.ffn, Dimension("feed_forward_length"));
  // Tables have a row for each position, and nothing in the file bounds it.
  RUNAHEAD_ASSIGN_OR_RETURN(config.context_length, Dimension("context_length", kMostContext));
  RUNAHEAD_ASSIGN_OR_RETURN(const FileTensor* embedding, file_.FindTensor("token_embd.weight"));
  if (embedding->dims.size() != 2 || embedding->dims[0] != config.hidden) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": tensor token_embd.weight is not [", config.hidden, ", vocabulary]"));
  }
  config.vocab = embedding->dims[1];
  return config;
}

absl::Status ConfigKeys::ReadHeads(ModelConfig& config) const {
  RUNAHEAD_ASSIGN_OR_RETURN(config.kv_heads, DimensionOr("attention.head_count_kv", config.heads));
  if (config.heads % config.kv_heads != 0) {
    return Refuse("attention.head_count_kv",
                  absl::StrCat(config.kv_heads, " does not divide the ", config.heads, " heads"));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(config.head_dim, DimensionOr("attention.key_length", config.hidden / config.heads));
  RUNAHEAD_ASSIGN_OR_RETURN(const int64_t of_values, DimensionOr("attention.value_length", config.head_dim));
  if (of_values != config.head_dim) return Refuse("attention.value_length", "differs from key_length");
  RUNAHEAD_ASSIGN_OR_RETURN(config.rotated, DimensionOr("rope.dimension_count", config.head_dim));
  if (config.head_dim < 2 || config.head_dim > kMaxHeadDim || config.head_dim % 2 != 0 || config.rotated % 2 != 0 ||
      config.rotated > config.head_dim) {
    return Refuse("rope.dimension_count",
                  absl::StrCat("head size ", config.head_dim, " with ", config.rotated,
                               " rotated dimensions is not supported; both must be even and at most ", kMaxHeadDim));
  }
  return absl::OkStatus();
}

absl::StatusOr<float> ConfigKeys::NotNegative(std::string_view name) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const float value, Float(name));
  if (!(value >= 0)) return Refuse(name, "must not be negative");
  return value;
}

absl::StatusOr<float> ConfigKeys::RopeBase(float otherwise) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const float base, FloatOr("rope.freq_base", otherwise));
  if (!(base > 0)) return Refuse("rope.freq_base", "must be positive");
  return base;
}

absl::StatusOr<int64_t> ConfigKeys::Dimension(std::string_view name, int64_t most) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const uint64_t value, file_.GetUint(Key(name)));
  if (value < 1 || value > static_cast<uint64_t>(most)) {
    return Refuse(name, absl::StrCat(value, " is not in 1 to ", most));
  }
  return static_cast<int64_t>(value);
}

absl::StatusOr<int64_t> ConfigKeys::Number(std::string_view name) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const uint64_t value, file_.GetUint(Key(name)));
  if (value > static_cast<uint64_t>(kMostDimension)) {
    return Refuse(name, absl::StrCat(value, " is above ", kMostDimension));
  }
  return static_cast<int64_t>(value);
}

absl::StatusOr<int64_t> ConfigKeys::DimensionOr(std::string_view name, int64_t otherwise) const {
  if (!Has(name)) return otherwise;
  return Dimension(name);
}

absl::StatusOr<float> ConfigKeys::Float(std::string_view name) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const double value, file_.GetFloat(Key(name)));
  return static_cast<float>(value);
}

absl::StatusOr<float> ConfigKeys::FloatOr(std::string_view name, float otherwise) const {
  if (!Has(name)) return otherwise;
  return Float(name);
}

absl::StatusOr<bool> ConfigKeys::BoolOr(std::string_view name, bool otherwise) const {
  if (!Has(name)) return otherwise;
  return file_.GetBool(Key(name));
}

std::vector<ModelFile::Entry> ConfigKeys::Unasked() const {
  std::vector<ModelFile::Entry> unasked = file_.Entries(prefix_);
  std::erase_if(unasked, [this](const ModelFile::Entry& entry) {
    return asked_.contains(std::string_view(entry.key.data(), entry.key.size()));
  });
  return unasked;
}

absl::Status ConfigKeys::Refuse(std::string_view name, std::string_view why) const {
  return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": key ", Key(name), ": ", std::string(why)));
}

}  // namespace runahead
