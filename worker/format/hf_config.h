// What a Hugging Face folder's config.json says, in GGUF's keys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/format/json_value.h"
#include "worker/format/metadata_writer.h"

namespace runahead {

// What else is asked of it before the keys are read.
struct HfModel {
  std::string architecture;  // what general.architecture calls the family
  int64_t layers = 0;
  bool tied = false;                     // the head is the embedding where it has no tensor of its own
  std::vector<std::string> biases = {};  // what it says has biases, as HfNames takes it
  std::string unread_keys = {};          // a sentence about keys that nothing reads (hf_unread_keys.h)
};

// Writes `general.architecture` and the family's keys. Missing keys take what transformers takes, where real folders
// leave them out. INVALID_ARGUMENT, which begins with `path`, names the key that is missing, is wrong, or asks for what
// no family of ours has.
absl::StatusOr<HfModel> TranslateHfConfig(const JsonValue& config, const std::string& path, MetadataWriter& to);

}  // namespace runahead
