// What is known of the memory of workers that are listed.
#pragma once

#include <cstdint>
#include <limits>

namespace runahead {

// In place of the tokens that a worker can hold, where it was never reached: it may be able to hold anything.
inline constexpr int64_t kNeverReached = std::numeric_limits<int64_t>::max();

}  // namespace runahead
