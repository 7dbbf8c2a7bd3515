// What a worker takes of the host's memory where nobody says how much.
#pragma once

#include <algorithm>
#include <cstdint>

namespace runahead {

// Weights, activations and who else is on the host have the rest.
inline constexpr int64_t kDefaultShareOfMemory = 4;

// `wanted` bytes, or the share of `usable` where that is less: UsableMemory(), or the largest int64_t where the memory
// is not the host's. At least 1 MiB.
inline int64_t DefaultMemory(int64_t wanted, int64_t usable) {
  return std::max(int64_t{1} << 20, std::min(wanted, usable / kDefaultShareOfMemory));
}

// Of the memory that the process may use, what weights that are packed for rows of prompts alone may take at most where
// nobody asked for such rows.
inline constexpr int64_t kShareForPromptRows = 8;

// Of KV that is decoded: what the default wants.
inline constexpr int64_t kWantedKvMemory = int64_t{2} << 30;

// Of KV of prompts that are computed. What is never used is never touched, but a small machine should not be promised
// more.
inline constexpr int64_t kMostDefaultPrefillMemory = int64_t{4} << 30;

}  // namespace runahead
