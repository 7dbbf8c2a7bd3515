#include "tests/testing/quantize_superblock.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/base/superblock.h"
#include "tests/testing/quantize.h"
#include "worker/format/dequantize.h"

namespace runahead {
namespace {

struct Shape {
  WeightType type;
  int top;         // the largest u
  int most_scale;  // the largest integer scale, and min
};
Shape ShapeOf(WeightType type) {
  switch (type) {
    case WeightType::kQ2_K:
      return {type, 3, 15};
    case WeightType::kQ3_K:
      return {type, 7, 31};
    case WeightType::kQ4_K:
      return {type, 15, 63};
    case WeightType::kQ5_K:
      return {type, 31, 63};
    case WeightType::kQ6_K:
      return {type, 63, 127};
    default:
      return {type, 15, 31};  // IQ4_XS
  }
}

int NearestLevel(float x) {
  int nearest = 0;
  for (int i = 1; i < 16; ++i) {
    if (std::abs(x - kIq4Levels[i]) < std::abs(x - kIq4Levels[nearest])) nearest = i;
  }
  return nearest;
}

// The bits of `value` at the place of byte `at`.
void Put(uint8_t* block, int at, int value, int shift) {
  block[at] |= static_cast<uint8_t>(value << shift);
}

void PutU(WeightType type, uint8_t* block, int e, int u) {
  const int pairs = 32 * (e / 128) + e % 32, pair_shift = 2 * (e % 128 / 32);
  const int nibbles = 32 * (e / 64) + e % 32, nibble_shift = e % 64 < 32 ? 0 : 4;
  switch (type) {
    case WeightType::kQ2_K:
      return Put(block, 16 + pairs, u, pair_shift);
    case WeightType::kQ3_K:
      Put(block, 32 + pairs, u & 3, pair_shift);
      return Put(block, e % 32, u >> 2, e / 32);
    case WeightType::kQ4_K:
      return Put(block, 16 + nibbles, u, nibble_shift);
    case WeightType::kQ5_K:
      Put(block, 48 + nibbles, u & 15, nibble_shift);
      return Put(block, 16 + e % 32, u >> 4, e / 32);
    case WeightType::kQ6_K:
      Put(block, 64 * (e / 128) + e % 64, u & 15, e % 128 < 64 ? 0 : 4);
      return Put(block, 128 + pairs, u >> 4, pair_shift);
    default:
      return Put(block, 8 + 16 * (e / 32) + e % 16, u, e % 32 < 16 ? 0 : 4);
  }
}

void PutScale(WeightType type, uint8_t* block, int i, int scale, int min) {
  switch (type) {
    case WeightType::kQ2_K:
      return Put(block, i, scale | min << 4, 0);
    case WeightType::kQ3_K:
      Put(block, 96 + i % 8, (scale + 32) & 15, i < 8 ? 0 : 4);
      return Put(block, 104 + i % 4, (scale + 32) >> 4, 2 * (i / 4));
    case WeightType::kQ6_K:
      return Put(block, 192 + i, scale, 0);
    case WeightType::kIQ4_XS:
      Put(block, 4 + i / 2, (scale + 32) & 15, 4 * (i % 2));
      return Put(block, 2 + i / 4, (scale + 32) >> 4, 2 * (i % 4));
    default:  // Q4_K, Q5_K
      if (i < 4) {
        Put(block, 4 + i, scale, 0);
        return Put(block, 8 + i, min, 0);
      }
      Put(block, 8 + i, (scale & 15) | (min & 15) << 4, 0);
      Put(block, i, scale >> 4, 6);
      return Put(block, 4 + i, min >> 4, 6);
  }
}

// f16 of what makes `most` of `steps`, in its place of the block; as f32.
float PutHalf(uint8_t* block, int at, float most, int steps) {
  const uint16_t half = FloatToFloat16(most / static_cast<float>(steps));
  std::memcpy(block + at, &half, sizeof(half));
  return Float16ToFloat(half);
}

int Rounded(float x, float step, int least, int most) {
  return std::clamp(step != 0 ? static_cast<int>(std::lround(x / step)) : 0, least, most);
}

}  // namespace

void AppendSuperblock(std::string& out, WeightType type, const float* x) {
  const Shape shape = ShapeOf(type);
  const int columns = SuperblockScaleColumns(type), parts = kSuperblock / columns;
  const bool has_min = SuperblockHasMin(type), levels = type == WeightType::kIQ4_XS;
  // The largest that a step of 1 reaches on either side.
  const float reach = static_cast<float>(levels ? 113 : has_min ? shape.top : shape.top - SuperblockOffset(type));
  float scales[16], minima[16];
  for (int i = 0; i < parts; ++i) {
    const auto [least, most] = std::minmax_element(x + i * columns, x + (i + 1) * columns);
    minima[i] = has_min ? std::max(0.0f, -*least) : 0.0f;
    scales[i] = (has_min ? *most + minima[i] : std::max(*most, -*least)) / reach;
  }
  uint8_t block[kSuperblock] = {};
  const float d = PutHalf(block, SuperblockDAt(type), *std::max_element(scales, scales + parts), shape.most_scale);
  const float dmin =
      has_min ? PutHalf(block, SuperblockMinAt(type), *std::max_element(minima, minima + parts), shape.most_scale) : 0;
  for (int i = 0; i < parts; ++i) {
    const int scale = Rounded(scales[i], d, 0, shape.most_scale), min = Rounded(minima[i], dmin, 0, shape.most_scale);
    PutScale(type, block, i, scale, min);
    const float step = d * static_cast<float>(scale), offset = dmin * static_cast<float>(min);
    for (int e = i * columns; e < (i + 1) * columns; ++e) {
      const int from = -SuperblockOffset(type);
      const int u = levels ? NearestLevel(step != 0 ? x[e] / step : 0)
                           : Rounded(x[e] + offset, step, from, from + shape.top) - from;
      PutU(type, block, e, u);
    }
  }
  out.append(reinterpret_cast<const char*>(block), BlockOf(type).bytes);
}

void AppendIq4Nl(std::string& out, const float* x) {
  const auto [least, most] = std::minmax_element(x, x + 32);
  uint8_t block[18] = {};
  const float d = PutHalf(block, 0, std::max(*most, -*least), 113);
  for (int e = 0; e < 32; ++e) Put(block, 2 + e % 16, NearestLevel(d != 0 ? x[e] / d : 0), e < 16 ? 0 : 4);
  out.append(reinterpret_cast<const char*>(block), sizeof(block));
}

}  // namespace runahead
