// What config.json says of rotary positions, in GGUF's keys.
#pragma once

#include <cstdint>
#include <string>

#include "worker/format/config_object.h"
#include "worker/format/metadata_writer.h"

namespace runahead {

// What transformers takes where config.json leaves it out.
struct RotaryDefaults {
  double base;
  double local_base = 0;  // of layers with a window; 0: they have no base of their own
};

// Writes rope.freq_base, rope.freq_base_swa, rope.dimension_count (where not all of head_dim) and rope.scaling.*, each
// behind `prefix`. Errors go to `config`.
void TranslateRotary(ConfigObject& config, const std::string& prefix, const RotaryDefaults& defaults, uint64_t head_dim,
                     MetadataWriter& to);

}  // namespace runahead
