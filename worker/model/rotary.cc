#include "worker/model/rotary.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

using std::numbers::pi;

// By its name, or by that which it had in old files.
const char* FactorKey(const ConfigKeys& keys) {
  static constexpr char kKey[] = "rope.scaling.factor", kOldKey[] = "rope.scale_linear";
  return !keys.Has(kKey) && keys.Has(kOldKey) ? kOldKey : kKey;
}

absl::StatusOr<float> Factor(const ConfigKeys& keys) {
  const char* const key = FactorKey(keys);
  RUNAHEAD_ASSIGN_OR_RETURN(const float factor, keys.Float(key));
  if (!(factor >= 1.0f)) return keys.Refuse(key, "must be at least 1");
  return factor;
}

absl::Status StretchByWaves(const ConfigKeys& keys, std::vector<float>& frequencies) {
  RUNAHEAD_ASSIGN_OR_RETURN(const float factor, Factor(keys));
  RUNAHEAD_ASSIGN_OR_RETURN(const float low, keys.Float("rope.scaling.low_freq_factor"));
  RUNAHEAD_ASSIGN_OR_RETURN(const float high, keys.Float("rope.scaling.high_freq_factor"));
  RUNAHEAD_ASSIGN_OR_RETURN(const int64_t original, keys.Dimension("rope.scaling.original_context_length"));
  if (!(low > 0 && high > low)) {
    return keys.Refuse("rope.scaling.high_freq_factor", "must be above low_freq_factor, and that above 0");
  }
  for (float& frequency : frequencies) {
    const double turns = static_cast<double>(original) * frequency / (2 * pi);  // in the original context
    if (turns < low) {
      frequency /= factor;
    } else if (turns <= high) {
      const float smooth = (static_cast<float>(turns) - low) / (high - low);
      frequency = (1 - smooth) * frequency / factor + smooth * frequency;
    }
  }
  return absl::OkStatus();
}

// How positions are stretched. Files that have a factor and no type mean linear, and none by a factor of 0.
absl::StatusOr<std::string> ScalingType(const ConfigKeys& keys) {
  if (keys.Has("rope.scaling.type")) return keys.String("rope.scaling.type");
  if (!keys.Has(FactorKey(keys))) return "none";
  RUNAHEAD_ASSIGN_OR_RETURN(const float factor, keys.Float(FactorKey(keys)));
  return factor == 0 ? "none" : "linear";
}

// How much cosines and sines grow by yarn.
absl::StatusOr<float> YarnMagnitude(const ConfigKeys& keys, float factor) {
  if (keys.Has("rope.scaling.yarn_attention_factor")) return keys.Float("rope.scaling.yarn_attention_factor");
  for (const char* key : {"yarn_attn_factor", "yarn_ext_factor", "yarn_log_multiplier"}) {
    const std::string whole = absl::StrCat("rope.scaling.", key);
    if (keys.Has(whole)) return keys.Refuse(whole, "is not supported");
  }
  const auto grown = [factor](float scale) { return factor <= 1 ? 1.0f : 0.1f * scale * std::log(factor) + 1.0f; };
  RUNAHEAD_ASSIGN_OR_RETURN(const float scale, keys.FloatOr("rope.scaling.yarn_mscale", 0));
  RUNAHEAD_ASSIGN_OR_RETURN(const float of_all, keys.FloatOr("rope.scaling.yarn_mscale_all_dim", 0));
  RUNAHEAD_ASSIGN_OR_RETURN(const float more, AttentionFactor(keys));
  return more * (scale > 0 && of_all > 0 ? grown(scale) / grown(of_all) : grown(1));
}

absl::Status StretchByYarn(const ConfigKeys& keys, float base, int64_t context_length, Rotary& rotary) {
  RUNAHEAD_ASSIGN_OR_RETURN(const float factor, Factor(keys));
  RUNAHEAD_ASSIGN_OR_RETURN(const float fast, keys.FloatOr("rope.scaling.yarn_beta_fast", 32));
  RUNAHEAD_ASSIGN_OR_RETURN(const float slow, keys.FloatOr("rope.scaling.yarn_beta_slow", 1));
  RUNAHEAD_ASSIGN_OR_RETURN(const int64_t original,
                            keys.DimensionOr("rope.scaling.original_context_length", context_length));
  RUNAHEAD_ASSIGN_OR_RETURN(rotary.magnitude, YarnMagnitude(keys, factor));
  if (!(slow > 0 && fast > slow)) {
    return keys.Refuse("rope.scaling.yarn_beta_fast", "must be above yarn_beta_slow, and that above 0");
  }
  const auto half = static_cast<int64_t>(rotary.frequencies.size());
  // Of the frequency that turns so often in the original context: its place among them.
  const auto place = [&](double turns) {
    return static_cast<double>(half) * std::log(static_cast<double>(original) / (turns * 2 * pi)) / std::log(base);
  };
  const double first = std::max(std::floor(place(fast)), 0.0);
  const double last = std::min(std::ceil(place(slow)), static_cast<double>(2 * half - 1));
  const double span = last > first ? last - first : 0.001;
  for (int64_t d = 0; d < half; ++d) {
    const auto divided = static_cast<float>(std::clamp((static_cast<double>(d) - first) / span, 0.0, 1.0));
    float& frequency = rotary.frequencies[d];
    frequency = frequency / factor * divided + frequency * (1 - divided);
  }
  return absl::OkStatus();
}

// Two sets of divisors, for contexts below and above the original one: which is right depends on how long a text gets.
absl::Status RefuseLongRope(const ModelFile& file) {
  for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
    if (file.FindTensor(name).ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), ": tensor ", name, ": positions stretched by longrope are not supported"));
    }
  }
  return absl::OkStatus();
}

absl::Status DivideByTensor(const ModelFile& file, std::vector<float>& frequencies) {
  const absl::StatusOr<const FileTensor*> tensor = file.FindTensor(kRopeFreqs);
  if (!tensor.ok()) return absl::OkStatus();
  if ((*tensor)->type != WeightType::kF32 || (*tensor)->dims.empty() ||
      (*tensor)->dims[0] != static_cast<int64_t>(frequencies.size()) || (*tensor)->rows() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": tensor rope_freqs.weight is not f32 [", frequencies.size(), "]"));
  }
  std::vector<float> divisors(frequencies.size());
  std::memcpy(divisors.data(), (*tensor)->data.data(), divisors.size() * sizeof(float));  // it may lie unaligned
  for (size_t d = 0; d < divisors.size(); ++d) frequencies[d] /= divisors[d];
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<float> AttentionFactor(const ConfigKeys& keys) {
  RUNAHEAD_ASSIGN_OR_RETURN(const float factor, keys.FloatOr("rope.scaling.attn_factor", 1));
  if (!(factor > 0)) return keys.Refuse("rope.scaling.attn_factor", "must be positive");
  return factor;
}

std::vector<float> PlainFrequencies(float base, int64_t dims) {
  std::vector<float> frequencies;
  for (int64_t d = 0; 2 * d < dims; ++d) {
    frequencies.push_back(1.0f / std::pow(base, static_cast<float>(2 * d) / static_cast<float>(dims)));
  }
  return frequencies;
}

absl::StatusOr<Rotary> ReadRotary(const ConfigKeys& keys, float base, int64_t dims, int64_t context_length) {
  Rotary rotary{.frequencies = PlainFrequencies(base, dims)};
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string type, ScalingType(keys));
  RUNAHEAD_ASSIGN_OR_RETURN(rotary.magnitude, AttentionFactor(keys));
  if (type == "linear") {
    RUNAHEAD_ASSIGN_OR_RETURN(const float factor, Factor(keys));
    for (float& frequency : rotary.frequencies) frequency /= factor;
  } else if (type == "llama3") {
    RUNAHEAD_RETURN_IF_ERROR(StretchByWaves(keys, rotary.frequencies));
  } else if (type == "yarn") {
    RUNAHEAD_RETURN_IF_ERROR(StretchByYarn(keys, base, context_length, rotary));
  } else if (type != "none" && type != "dynamic") {
    return keys.Refuse("rope.scaling.type",
                       absl::StrCat("'", type, "' is not supported; none, linear, dynamic, llama3 and yarn are"));
  }
  RUNAHEAD_RETURN_IF_ERROR(RefuseLongRope(keys.file()));
  RUNAHEAD_RETURN_IF_ERROR(DivideByTensor(keys.file(), rotary.frequencies));
  for (const float frequency : rotary.frequencies) {
    if (!std::isfinite(frequency)) return keys.Refuse("rope.scaling", "a frequency is not finite");
  }
  return rotary;
}

std::vector<float> RotationTable(const Rotary& rotary, int64_t context_length) {
  const auto half = static_cast<int64_t>(rotary.frequencies.size());
  std::vector<float> table(static_cast<size_t>(context_length * 2 * half));
  for (int64_t position = 0; position < context_length; ++position) {
    float* const row = table.data() + position * 2 * half;
    for (int64_t d = 0; d < half; ++d) {
      const auto angle = static_cast<double>(static_cast<float>(position) * rotary.frequencies[d]);
      row[d] = static_cast<float>(std::cos(angle)) * rotary.magnitude;
      row[half + d] = static_cast<float>(std::sin(angle)) * rotary.magnitude;
    }
  }
  return table;
}

}  // namespace runahead
