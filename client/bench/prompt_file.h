// Prompts of a file: JSON lines.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/bench/bench_request.h"

namespace runahead {

// A request for each line of `text` that is not blank: an object with "prompt", a text, or "messages", a list of
// objects with "role" and "content", both texts; and "max_tokens" where it is not `max_tokens`. Other members are left
// out. INVALID_ARGUMENT, without the flag's name, says in which line something is wrong, or that there is none.
absl::StatusOr<std::vector<BenchRequest>> ReadPromptLines(absl::string_view text, int32_t max_tokens, bool ignore_eos);

}  // namespace runahead
