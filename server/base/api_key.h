// What clients call with: a secret of 256 random bits. Whoever checks it keeps its hash only.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace runahead {

// A new one: "runahead_" and 64 hex digits. From the kernel; nobody can guess it.
std::string DrawApiKey();

// SHA-256 of a key: 32 bytes. A slow hash would gain nothing: what is drawn from 2^256 keys is found by trying under no
// hash. It is for keys that were drawn, not for passwords.
std::string HashOfApiKey(absl::string_view key);

// As files have it: "sha256:" and 64 hex digits.
std::string ApiKeyHashText(absl::string_view hash);

// The inverse. INVALID_ARGUMENT, which holds nothing of `text`: it may be a key that stands there by mistake.
absl::StatusOr<std::string> ParseApiKeyHash(absl::string_view text);

}  // namespace runahead
