// Grammars: which of those that the compiler reads can be promised.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace runahead {

// Of a grammar in the form of docs/structure.md. INVALID_ARGUMENT says at which line what is not supported or allowed.
// What else is wrong with it the compiler says.
absl::Status CheckGrammar(std::string_view grammar);

}  // namespace runahead
