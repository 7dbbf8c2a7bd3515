// Sums of products by the instruction that adds four of them to each 32-bit integer. Include only from files that are
// compiled for it.
#pragma once

#include <cstdint>

namespace runahead {

// Tag: the type of the including file that says Dot, the instruction, and Quartet, four columns of q for all rows.
template <class Tag>
struct VnniSums {
  // start + sum(u*q) of a block, whatever the bits of u; and of half a block. One chain of additions: there are as many
  // as rows, which are enough for its latency.
  template <int kBits, class Int>
  static inline __attribute__((always_inline)) Int Sum(const Int* u, const int8_t* q, Int start) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) start = Tag::Dot(start, u[k], Tag::Quartet(q, k));
    return start;
  }
  template <int kBits, class Int>
  static inline __attribute__((always_inline)) Int HalfSum(const Int* u, const int8_t* q, Int start) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) start = Tag::Dot(start, u[k], Tag::Quartet(q, k));
    return start;
  }
};

}  // namespace runahead
