#include "worker/model/windows.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr const char* kLayersKey = "attention.sliding_window_layers";
constexpr const char* kPatternKey = "attention.sliding_window_pattern";
constexpr const char* kFromKey = "attention.sliding_window_from_layer";

// From a key with a boolean for each layer.
absl::StatusOr<std::vector<bool>> Listed(const ConfigKeys& keys, const char* key, int64_t layers) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::vector<bool> local, keys.Bools(key));
  if (static_cast<int64_t>(local.size()) != layers) {
    return keys.Refuse(key, absl::StrCat("it has ", local.size(), " entries for ", layers, " layers"));
  }
  return local;
}

}  // namespace

absl::StatusOr<std::vector<bool>> ReadLocalLayers(const ConfigKeys& keys, int64_t layers, int64_t pattern) {
  if (keys.Has(kLayersKey)) return Listed(keys, kLayersKey, layers);
  if (keys.HasBools(kPatternKey)) return Listed(keys, kPatternKey, layers);
  int64_t from = 0;
  if (keys.Has(kFromKey)) {
    RUNAHEAD_ASSIGN_OR_RETURN(from, keys.Number(kFromKey));
  } else if (keys.Has(kPatternKey)) {
    RUNAHEAD_ASSIGN_OR_RETURN(pattern, keys.Number(kPatternKey));
  }
  std::vector<bool> local;
  for (int64_t layer = 0; layer < layers; ++layer) {
    local.push_back(layer >= from && (pattern == 0 || (layer + 1) % pattern != 0));
  }
  return local;
}

absl::StatusOr<std::vector<int64_t>> ReadWindows(const ConfigKeys& keys, const ModelConfig& config, int64_t pattern) {
  std::vector<int64_t> windows(config.layers, 0);
  if (!keys.Has("attention.sliding_window")) return windows;
  RUNAHEAD_ASSIGN_OR_RETURN(const int64_t window, keys.Number("attention.sliding_window"));
  if (window == 0 || window >= config.context_length) return windows;
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<bool> local, ReadLocalLayers(keys, config.layers, pattern));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (local[layer]) windows[layer] = window;
  }
  return windows;
}

}  // namespace runahead
