// Which layers see only the last positions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/config_keys.h"

namespace runahead {

// By layer, whether it is local. Those are named by `attention.sliding_window_layers` (booleans), or are those from
// `attention.sliding_window_from_layer` on, or of every `attention.sliding_window_pattern` layers all but the last;
// where the file says none of these, `pattern` is taken, and 0 is: all of them. INVALID_ARGUMENT names the key.
absl::StatusOr<std::vector<bool>> ReadLocalLayers(const ConfigKeys& keys, int64_t layers, int64_t pattern);

// By layer, AttentionShape::window: `attention.sliding_window` where the layer is local, 0 where it sees all. A window
// as long as the context is none. INVALID_ARGUMENT names the key.
absl::StatusOr<std::vector<int64_t>> ReadWindows(const ConfigKeys& keys, const ModelConfig& config, int64_t pattern);

}  // namespace runahead
