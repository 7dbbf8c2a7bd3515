// The checksum of bytes that are all there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/link/running_sum.h"

namespace runahead::testing {

inline uint64_t SumOf(uint64_t seed, const void* data, size_t size) {
  RunningSum sum(seed);
  sum.Add(data, size);
  return sum.value();
}

}  // namespace runahead::testing
