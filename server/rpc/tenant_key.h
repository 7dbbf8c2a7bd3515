// Names of tenants, and the metadata key by which a call says whose its request is.
#pragma once

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace runahead {

inline constexpr char kTenantKey[] = "runahead-tenant";
inline constexpr size_t kMaxTenantBytes = 64;

// Whether it may be a tenant's name: 1 to kMaxTenantBytes printable characters of ASCII without spaces.
inline bool IsTenantName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxTenantBytes &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~'; });
}

// Whether it may be the name of an API key, which is a tenant's: 1 to kMaxTenantBytes letters, digits, dots, dashes and
// underscores of ASCII.
inline bool IsApiKeyName(absl::string_view name) {
  return IsTenantName(name) && std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
         });
}

}  // namespace runahead
