// Sums of products of a block by the instructions for vectors. Include only from files that are compiled for them.
#pragma once

#include <cstdint>

#include "kernels/cpu/int8/elements_template.h"
#include "kernels/cpu/int8/product.h"

namespace runahead {

// What group_template.h takes as Isa::Sums, with the weights in registers: a sum is found when it is asked for.
template <class Isa, WeightType type, int kGroups>
class Int8RegisterSums {
 public:
  using Int = typename Isa::Int;

  // A block of rows [first, first + Isa::kRows) of each group, and all rows of q: [rows][32].
  inline __attribute__((always_inline))
  Int8RegisterSums(const uint8_t* const (&blocks)[kGroups], int first, const int8_t* q, int64_t /*rows*/)
      : q_(q) {
    for (int g = 0; g < kGroups; ++g) w_[g] = Elements::Whole(blocks[g], first);
  }
  // start + sum(u*q) of group g and row r of q; and of half h of the block.
  inline __attribute__((always_inline)) Int Sum(int g, int64_t r, Int start) const {
    return Isa::template Sum<kBits>(w_[g].u, q_ + r * kInt8Block, start);
  }
  inline __attribute__((always_inline)) Int HalfSum(int g, int h, int64_t r, Int start) const {
    return Isa::template HalfSum<kBits>(w_[g].u + 4 * h, q_ + r * kInt8Block + h * kInt8Block / 2, start);
  }

 private:
  using Elements = Int8Elements<Isa, type>;
  static constexpr int kBits = Elements::kBytes ? 8 : Elements::kLayout.bits;

  Int8Quartets<Isa> w_[kGroups];
  const int8_t* q_;
};

}  // namespace runahead
