// Random bits that nobody can guess.
#pragma once

#include <cstdint>

namespace runahead {

// 64 bits from the kernel, never 0: incarnations, lease secrets, drawn seeds. Thread-safe; does not fail on Linux.
uint64_t RandomBits64();

}  // namespace runahead
