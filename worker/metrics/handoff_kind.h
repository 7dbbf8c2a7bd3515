// What is handed off, as both its ends count it.
#pragma once

namespace runahead {

enum class HandoffKind { kKv, kX };
inline constexpr int kHandoffKinds = 2;
inline constexpr const char* kHandoffKindNames[kHandoffKinds] = {"kv", "x"};

}  // namespace runahead
