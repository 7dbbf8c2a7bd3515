#include "worker/format/hf_rotary.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "worker/format/quoted.h"

namespace runahead {
namespace {

// Its frequencies and how they are stretched: "rope_scaling", or an object that says more than that.
class RotaryTranslation {
 public:
  RotaryTranslation(ConfigObject& from, const std::string& prefix, MetadataWriter& to)
      : from_(from), prefix_(prefix + "rope.scaling."), to_(to) {}

  // `key`: what the object is called.
  void Scaling(ConfigObject& config, const char* key) {
    const std::string type = from_.Has("rope_type") ? from_.Text("rope_type") : from_.Text("type");
    if (!from_.status().ok()) return config.Update(from_);
    if (from_.Has("mrope_section")) return config.Refuse(key, "has mrope_section, which is not supported");
    if (!from_.BoolOr("truncate", true)) return config.Refuse(key, "has truncate false, which is not supported");
    if (type == "default") return;
    if (type != "linear" && type != "dynamic" && type != "llama3" && type != "yarn") {
      return config.Refuse(key, absl::StrCat("has the type ", Quoted(type),
                                             ", which is not supported; linear, dynamic, llama3 and yarn are"));
    }
    to_.String(prefix_ + "type", type);
    to_.Float(prefix_ + "factor", from_.Float("factor"));
    if (type == "llama3" || from_.Has("original_max_position_embeddings")) {
      to_.Uint(prefix_ + "original_context_length", from_.Uint("original_max_position_embeddings"));
    }
    if (type == "llama3") {
      to_.Float(prefix_ + "low_freq_factor", from_.Float("low_freq_factor"));
      to_.Float(prefix_ + "high_freq_factor", from_.Float("high_freq_factor"));
    }
    if (type == "yarn") Yarn();
  }

 private:
  void Yarn() {
    for (const char* key : {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"}) {
      if (from_.Has(key)) to_.Float(absl::StrCat(prefix_, "yarn_", key), from_.Float(key));
    }
  }

  ConfigObject& from_;
  const std::string prefix_;
  MetadataWriter& to_;
};

// How much of each head is rotated, where that is said.
void TranslateShare(ConfigObject& from, const std::string& prefix, uint64_t head_dim, MetadataWriter& to) {
  if (!from.Has("partial_rotary_factor")) return;
  const double rotated = static_cast<double>(head_dim) * from.Float("partial_rotary_factor");
  if (!(rotated >= 0 && rotated <= static_cast<double>(head_dim))) {
    return from.Refuse("partial_rotary_factor", "must be from 0 to 1");
  }
  to.Uint(prefix + "rope.dimension_count", static_cast<uint64_t>(rotated));
}

// Whether a "rope_scaling" says the same as the object that says more.
bool SaysTheSame(ConfigObject& scaling, ConfigObject& parameters) {
  const auto type = [](ConfigObject& of) { return of.TextOr("rope_type", of.TextOr("type", "default")); };
  return type(scaling) == type(parameters) && scaling.FloatOr("factor", 1) == parameters.FloatOr("factor", 1);
}

// transformers from 5 on has all of it in one object, or in one for each type of layers.
void TranslateParameters(ConfigObject& config, ConfigObject& parameters, const std::string& prefix,
                         const RotaryDefaults& defaults, uint64_t head_dim, MetadataWriter& to) {
  constexpr char kKey[] = "rope_parameters";
  std::optional<ConfigObject> global = parameters.Object("full_attention");
  std::optional<ConfigObject> local = parameters.Object("sliding_attention");
  ConfigObject& all = global ? *global : parameters;
  to.Float(prefix + "rope.freq_base", all.FloatOr("rope_theta", defaults.base));
  TranslateShare(all, prefix, head_dim, to);
  RotaryTranslation(all, prefix, to).Scaling(config, kKey);
  if (defaults.local_base > 0) {
    to.Float(prefix + "rope.freq_base_swa",
             local ? local->FloatOr("rope_theta", defaults.local_base) : defaults.local_base);
    if (local && local->TextOr("rope_type", "default") != "default") {
      config.Refuse(kKey, "stretches local layers, which is not supported");
    }
  } else if (local) {
    config.Refuse(kKey, "has sliding_attention, which is not supported here");
  }
  for (const std::optional<ConfigObject>& part : {global, local}) {
    if (part) config.Update(*part);
  }
  config.Update(parameters);
}

}  // namespace

void TranslateRotary(ConfigObject& config, const std::string& prefix, const RotaryDefaults& defaults, uint64_t head_dim,
                     MetadataWriter& to) {
  TranslateShare(config, prefix, head_dim, to);
  std::optional<ConfigObject> scaling = config.Object("rope_scaling");
  if (std::optional<ConfigObject> parameters = config.Object("rope_parameters")) {
    if (scaling && !SaysTheSame(*scaling, *parameters)) {
      return config.Refuse("rope_scaling", "says other than rope_parameters; keep the one that holds");
    }
    return TranslateParameters(config, *parameters, prefix, defaults, head_dim, to);
  }
  to.Float(prefix + "rope.freq_base", config.FloatOr("rope_theta", defaults.base));
  if (defaults.local_base > 0) {
    to.Float(prefix + "rope.freq_base_swa", config.FloatOr("rope_local_base_freq", defaults.local_base));
  }
  if (scaling) {
    RotaryTranslation(*scaling, prefix, to).Scaling(config, "rope_scaling");
    config.Update(*scaling);
  }
}

}  // namespace runahead
