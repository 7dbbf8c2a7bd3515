// What becomes of keys of a folder's config.json that nothing of ours reads.
#pragma once

#include <string>

#include "worker/format/config_object.h"

namespace runahead {

// To be asked when the family's keys were read from `config`. For people: one sentence that begins with `path` and names
// the keys that were not asked for, but for those that are known not to change what a model computes. Empty where there
// are none.
std::string UnreadHfKeysRemark(const ConfigObject& config, const std::string& path);

}  // namespace runahead
