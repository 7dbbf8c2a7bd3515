// How much a form costs to compile, as far as its text shows it.
#pragma once

#include <cstdint>

namespace runahead {

// A count such as that of {n,m} is kept apart from what it counts, so that counts within counts multiply: an expression
// is as large as what it stands for when all counts are written out. Each of its characters, or classes of them, is
// one. Measured: see docs/structure.md.
inline constexpr int64_t kMaxCount = 1000;        // of a single one
inline constexpr int64_t kMaxWrittenOut = 20000;  // of all together

}  // namespace runahead
