// Patterns as tokenizer.json files have them (Oniguruma's), for PCRE2.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace runahead {

// `pattern` as PCRE2 takes it with UTF and UCP. INVALID_ARGUMENT names what the two understand differently, and what
// tokenizers have no use for.
absl::StatusOr<std::string> PatternForPcre2(std::string_view pattern);

}  // namespace runahead
