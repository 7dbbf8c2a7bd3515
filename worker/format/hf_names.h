// What tensors of Hugging Face folders are called in GGUF files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace runahead {

// By the name in a folder.
struct HfName {
  enum class Role {
    kUsed,
    kIgnored,  // of what is not loaded (towers that see images), or what the classes of transformers compute anew
    kBeyond,   // of a layer behind the last that config.json counts
    kUnknown,  // a weight that the family does not have
  };
  Role role = Role::kUnknown;
  std::string name = {};     // GGUF's, where it is used
  bool unannounced = false;  // it is a bias that the class of transformers has only where config.json says so
};

// Of one family's models.
class HfNames {
 public:
  // `architecture` is one that TranslateHfConfig gives.
  // `tied`: the head may be missing. `biases`: modules whose biases config.json announces ("self_attn.", "mlp.").
  HfNames(absl::string_view architecture, int64_t layers, bool tied, std::vector<std::string> biases = {});

  HfName Of(absl::string_view stored) const;

  // A tensor that every model of the family has.
  struct Needed {
    std::string name;    // GGUF's
    std::string stored;  // in folders; where several are possible, one of them
  };
  // The first of these for which `has`, given GGUF's name, is false.
  std::optional<Needed> FirstMissing(absl::FunctionRef<bool(const std::string& name)> has) const;

  // A module's tensors.
  enum class Parts { kWeight, kMayHaveBias, kWithBias };
  struct Module {
    const char* stored;
    const char* name;
    Parts parts = Parts::kWeight;
    bool may_lack = false;
  };
  struct Family {
    const char* architecture;
    const char* prefix;  // what all names of the text model begin with, in most folders
    const char* layers;
    std::vector<Module> ends, layer;
  };

 private:
  bool NeedsBias(const Module& module) const;
  // A used one's, without the layer before its name.
  std::optional<HfName> Find(const std::vector<Module>& modules, absl::string_view stored) const;

  const Family& family_;
  const int64_t layers_;
  const bool tied_;
  const std::vector<std::string> biases_;
};

}  // namespace runahead
