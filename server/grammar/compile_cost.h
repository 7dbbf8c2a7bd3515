// How much a form costs to compile, as far as its text shows it.
#pragma once

#include <cstdint>

namespace runahead {

// Counts within counts multiply, as in ((a{9}){9}){9}: an expression is as large as what it stands for when all counts
// are written out. Each of its characters, or classes of them, is one; one that may be left out is two. Measured: see
// docs/structure.md.
inline constexpr int64_t kMaxCount = 1000;       // of a single one
inline constexpr int64_t kMaxWrittenOut = 1000;  // of all together
// Of one object: time grows by the square of those that may be left out.
inline constexpr int64_t kMaxProperties = 500;

}  // namespace runahead
