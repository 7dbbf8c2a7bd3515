// The superblocks of GGUF's K types and of IQ4_XS: 256 elements of one row that share f16 scales d and, in some types,
// dmin, and have small integer scales for each 32 or 16 of them. Element e is
//   w = d * scale * level                  Q3_K (level = u - 4), Q6_K (u - 32), IQ4_XS (kIq4Levels[u])
//   w = d * scale * level - dmin * min     Q2_K, Q4_K, Q5_K (level = u)
// with d * scale * level and dmin * min exact in f32. As weight_type.h, of no other file; `block` is the superblock's
// bytes, as in the file, and needs no alignment. For hosts and devices.
#pragma once

#include <cstdint>

#include "kernels/base/weight_type.h"

#if defined(__CUDACC__)
#define RUNAHEAD_ANYWHERE __host__ __device__
#else
#define RUNAHEAD_ANYWHERE
#endif

namespace runahead {

struct SuperblockParts {
  int d_at = 0;           // bytes before d, an f16
  int min_at = 0;         // and before dmin; 0: there is none
  int scale_columns = 0;  // elements that share an integer scale
  int scale_bits = 0;     // of a scale, and of a min, in the file
  int offset = 0;         // what is subtracted from u; 0 where u is the level, or the number of one
};

// Zeros for a type of no superblocks.
RUNAHEAD_ANYWHERE constexpr SuperblockParts SuperblockPartsOf(WeightType type) {
  switch (type) {
    case WeightType::kQ2_K:
      return {80, 82, 16, 4, 0};
    case WeightType::kQ3_K:
      return {108, 0, 16, 6, 4};
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      return {0, 2, 32, 6, 0};
    case WeightType::kQ6_K:
      return {208, 0, 16, 8, 32};
    case WeightType::kIQ4_XS:
      return {0, 0, 32, 6, 0};
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
    case WeightType::kQ4_0:
    case WeightType::kQ4_1:
    case WeightType::kQ5_0:
    case WeightType::kQ5_1:
    case WeightType::kQ8_0:
    case WeightType::kIQ4_NL:
      break;
  }
  return {};
}
RUNAHEAD_ANYWHERE constexpr int SuperblockDAt(WeightType type) {
  return SuperblockPartsOf(type).d_at;
}
RUNAHEAD_ANYWHERE constexpr int SuperblockMinAt(WeightType type) {
  return SuperblockPartsOf(type).min_at;
}
RUNAHEAD_ANYWHERE constexpr bool SuperblockHasMin(WeightType type) {
  return SuperblockMinAt(type) != 0;
}
RUNAHEAD_ANYWHERE constexpr int SuperblockScaleColumns(WeightType type) {
  return SuperblockPartsOf(type).scale_columns;
}
RUNAHEAD_ANYWHERE constexpr int SuperblockOffset(WeightType type) {
  return SuperblockPartsOf(type).offset;
}

// u of element e: so many bits as the type's name says.
template <WeightType type>
RUNAHEAD_ANYWHERE constexpr int SuperblockU(const uint8_t* block, int e) {
  // Two bits: four elements a byte, 32 apart, in two halves of 128. Nibbles: two elements a byte, 32 apart.
  const int pairs = 32 * (e / 128) + e % 32, pair_shift = 2 * (e % 128 / 32);
  const int nibbles = 32 * (e / 64) + e % 32, nibble_shift = e % 64 < 32 ? 0 : 4;
  if constexpr (type == WeightType::kQ2_K) return block[16 + pairs] >> pair_shift & 3;
  if constexpr (type == WeightType::kQ3_K) {
    return (block[32 + pairs] >> pair_shift & 3) | (block[e % 32] >> (e / 32) & 1) << 2;
  }
  if constexpr (type == WeightType::kQ4_K) return block[16 + nibbles] >> nibble_shift & 15;
  if constexpr (type == WeightType::kQ5_K) {
    return (block[48 + nibbles] >> nibble_shift & 15) | (block[16 + e % 32] >> (e / 32) & 1) << 4;
  }
  if constexpr (type == WeightType::kQ6_K) {
    const int low = block[64 * (e / 128) + e % 64] >> (e % 128 < 64 ? 0 : 4) & 15;
    return low | (block[128 + pairs] >> pair_shift & 3) << 4;
  }
  if constexpr (type == WeightType::kIQ4_XS) return block[8 + 16 * (e / 32) + e % 16] >> (e % 32 < 16 ? 0 : 4) & 15;
}

// Scale and min `i`: those of elements from i * SuperblockScaleColumns(type) on.
template <WeightType type>
RUNAHEAD_ANYWHERE constexpr int SuperblockScale(const uint8_t* block, int i) {
  if constexpr (type == WeightType::kQ2_K) return block[i] & 15;
  if constexpr (type == WeightType::kQ3_K) {
    const uint8_t* const s = block + 96;
    return ((s[i % 8] >> (i < 8 ? 0 : 4) & 15) | (s[8 + i % 4] >> (2 * (i / 4)) & 3) << 4) - 32;
  }
  if constexpr (type == WeightType::kQ4_K || type == WeightType::kQ5_K) {
    const uint8_t* const s = block + 4;
    return i < 4 ? s[i] & 63 : (s[i + 4] & 15) | (s[i - 4] >> 6) << 4;
  }
  if constexpr (type == WeightType::kQ6_K) return static_cast<int8_t>(block[192 + i]);
  if constexpr (type == WeightType::kIQ4_XS) {
    const int low = block[4 + i / 2] >> (4 * (i % 2)) & 15, high = block[2 + i / 4] >> (2 * (i % 4)) & 3;
    return (low | high << 4) - 32;
  }
}
template <WeightType type>
RUNAHEAD_ANYWHERE constexpr int SuperblockMin(const uint8_t* block, int i) {
  if constexpr (type == WeightType::kQ2_K) return block[i] >> 4;
  if constexpr (type == WeightType::kQ4_K || type == WeightType::kQ5_K) {
    const uint8_t* const s = block + 4;
    return i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | (s[i] >> 6) << 4;
  }
  return 0;
}

// visit.template operator()<type>() for a type of superblocks; nothing for another.
template <typename Visit>
constexpr void VisitSuperblock(WeightType type, const Visit& visit) {
  switch (type) {
    case WeightType::kQ2_K:
      return visit.template operator()<WeightType::kQ2_K>();
    case WeightType::kQ3_K:
      return visit.template operator()<WeightType::kQ3_K>();
    case WeightType::kQ4_K:
      return visit.template operator()<WeightType::kQ4_K>();
    case WeightType::kQ5_K:
      return visit.template operator()<WeightType::kQ5_K>();
    case WeightType::kQ6_K:
      return visit.template operator()<WeightType::kQ6_K>();
    case WeightType::kIQ4_XS:
      return visit.template operator()<WeightType::kIQ4_XS>();
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
    case WeightType::kQ4_0:
    case WeightType::kQ4_1:
    case WeightType::kQ5_0:
    case WeightType::kQ5_1:
    case WeightType::kQ8_0:
    case WeightType::kIQ4_NL:
      return;
  }
}

}  // namespace runahead
