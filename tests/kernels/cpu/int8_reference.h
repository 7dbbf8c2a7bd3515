// What products in 8 bits must give, one element after the other as kernels/cpu/int8/product.h says, and the kernels
// that this machine can hold to it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/int8/int8_weights.h"
#include "tests/kernels/cpu/random_weights.h"

namespace runahead {

const Int8Kernels& EmulatedAmxInt8Kernels();      // int8_emulated_amx.cc; needs AVX512-VNNI
int64_t EmulatedAmxStrips();                      // that its tiles were configured for so far
const Int8Kernels& EmulatedAvxVnniInt8Kernels();  // int8_emulated_vnni.cc

// Those of this machine, and what can be emulated.
inline std::vector<const Int8Kernels*> Int8KernelsHere() {
  std::vector<const Int8Kernels*> kernels = {&Avx2Int8Kernels(), &EmulatedAvxVnniInt8Kernels()};
  const CpuVnni vnni = DetectCpuVnni();
  if (vnni.avx) kernels.push_back(&AvxVnniInt8Kernels());
  if (vnni.avx512) kernels.insert(kernels.end(), {&Avx512VnniInt8Kernels(), &EmulatedAmxInt8Kernels()});
  if (vnni.amx) kernels.push_back(&AmxInt8Kernels());
  return kernels;
}

struct LoadedInt8 {
  explicit LoadedInt8(const WeightSource& source, int threads = 1) : pool(threads), arena(HostChunks(nullptr)) {
    weights = *Int8Weights::Make(source, arena, pool);
  }
  std::vector<float> Multiply(const Int8Kernels& kernels, Int8Product args) {
    std::vector<float> out(args.m * args.cols);
    args.out = out.data();
    args.out_stride = args.cols;
    weights->Multiply(KernelsFor(false), kernels, pool, args);
    return out;
  }
  ThreadPool pool;
  Arena arena;
  std::optional<Int8Weights> weights;
};

// A block of activations.
struct ScalarBlock {
  explicit ScalarBlock(const float* x) {
    float largest = 0;
    for (int i = 0; i < kInt8Block; ++i) largest = std::max(largest, std::abs(x[i]));
    if (largest < 0x1p-100f) return;
    scale = largest / 127.0f;
    for (int i = 0; i < kInt8Block; ++i) q[i] = static_cast<int>(std::nearbyint(x[i] * (127.0f / largest)));
    for (int value : q) sum += value;
  }
  float scale = 0;
  int sum = 0;
  int q[kInt8Block] = {};
};

inline float ScalarHalf(const void* at) {
  uint16_t half;
  std::memcpy(&half, at, sizeof(half));
  return static_cast<float>(HalfToDouble(half));
}

// What block `b` of a row adds to y, of a block of activations.
inline float AddScalarBlock(const RandomWeights& weights, int64_t row, int64_t b, const ScalarBlock& x, float y) {
  const std::byte* const at = weights.BlockAt(row, b * kInt8Block);
  int sum = 0;
  for (int i = 0; i < kInt8Block; ++i) sum += weights.Level(row, b * kInt8Block + i) * x.q[i];
  y = std::fma(ScalarHalf(at) * x.scale, static_cast<float>(sum), y);
  if (!weights.HasMinimum()) return y;
  return std::fma(ScalarHalf(at + weights.MinimumAt()), x.scale * static_cast<float>(x.sum), y);
}

template <WeightType type>
float AddScalarSuperblockPart(const uint8_t* block, int part, const ScalarBlock& x, float y) {
  constexpr int kColumns = SuperblockScaleColumns(type), kScales = kInt8Block / kColumns;
  int64_t sum = 0, least = 0, sums_of_u = 0;
  for (int i = 0; i < kInt8Block; ++i) {
    const int u = SuperblockU<type>(block, part * kInt8Block + i), s = part * kScales + i / kColumns;
    const int level = type == WeightType::kIQ4_XS ? kIq4Levels[u] : u - SuperblockOffset(type);
    sum += SuperblockScale<type>(block, s) * level * x.q[i];
    sums_of_u += level * x.q[i];
    least += SuperblockMin<type>(block, s) * x.q[i];
  }
  const float d = ScalarHalf(block + SuperblockDAt(type));
  const float dmin = SuperblockHasMin(type) ? ScalarHalf(block + SuperblockMinAt(type)) : 0.0f;
  if (kScales == 2) {
    y = std::fma(d * x.scale, static_cast<float>(sum), y);
    return SuperblockHasMin(type) ? std::fma(-dmin * x.scale, static_cast<float>(least), y) : y;
  }
  const float scale = d * static_cast<float>(SuperblockScale<type>(block, part));
  y = std::fma(scale * x.scale, static_cast<float>(sums_of_u), y);
  if (!SuperblockHasMin(type)) return y;
  return std::fma(-dmin * static_cast<float>(SuperblockMin<type>(block, part)), x.scale * static_cast<float>(x.sum), y);
}

inline float ScalarProduct(const RandomWeights& weights, int64_t row, const float* x, float y = 0) {
  constexpr int64_t kParts = kSuperblock / kInt8Block;
  for (int64_t b = 0; b < weights.cols / kInt8Block; ++b) {
    const ScalarBlock block(x + b * kInt8Block);
    if (!IsSuperblock(weights.type)) {
      y = AddScalarBlock(weights, row, b, block, y);
      continue;
    }
    const auto* const at = reinterpret_cast<const uint8_t*>(weights.BlockAt(row, b * kInt8Block));
    VisitSuperblock(weights.type, [&]<WeightType type>() {
      y = AddScalarSuperblockPart<type>(at, static_cast<int>(b % kParts), block, y);
    });
  }
  return y;
}

// Of m rows of x with all of the weights.
inline std::vector<float> ScalarProducts(const RandomWeights& weights, const std::vector<float>& x, int64_t m) {
  std::vector<float> y;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t n = 0; n < weights.rows; ++n) y.push_back(ScalarProduct(weights, n, x.data() + i * weights.cols));
  }
  return y;
}

inline constexpr WeightType kInt8Types[] = {
    WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0, WeightType::kQ5_1, WeightType::kQ8_0, WeightType::kIQ4_NL,
    WeightType::kQ2_K, WeightType::kQ3_K, WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K, WeightType::kIQ4_XS};

}  // namespace runahead
