// What becomes of a GGUF file's keys that nothing of ours reads.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/model/config_keys.h"

namespace runahead {

// To be asked when the family has read its `keys`. Folders pass: their keys are our own.
//
// INVALID_ARGUMENT, with the key, where one that was not asked for changes what llama.cpp computes.
absl::Status CheckUnreadKeys(const ConfigKeys& keys);

// For people, one sentence each: keys of the architecture that were not asked for, and keys of the tokenizer that ours
// does not know, but for those that are known to change nothing.
std::vector<std::string> UnreadKeyRemarks(const ConfigKeys& keys);

}  // namespace runahead
