#include "kernels/cpu/simd/functions.h"
#include "kernels/cpu/simd/vec.h"

namespace runahead::RUNAHEAD_ISA {
namespace {

void RotateHalves(float* x, const float* cos_sin, int64_t half) {
  for (int64_t d = 0; d < half; d += kLanes) {
    const int64_t n = half - d;
    const Vec a = LoadN(x + d, n), b = LoadN(x + half + d, n);
    const Vec cos = LoadN(cos_sin + d, n), sin = LoadN(cos_sin + half + d, n);
    StoreN(x + d, Sub(Mul(a, cos), Mul(b, sin)), n);
    StoreN(x + half + d, Add(Mul(b, cos), Mul(a, sin)), n);
  }
}

void RotateInterleaved(float* __restrict x, const float* __restrict cos_sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1], cos = cos_sin[i], sin = cos_sin[half + i];
    x[2 * i] = a * cos - b * sin;
    x[2 * i + 1] = b * cos + a * sin;
  }
}

template <typename Out>
void Convert(const float* x, int64_t count, Out* out) {
  for (int64_t i = 0; i < count; i += kLanes) StoreN(out + i, LoadN(x + i, count - i), count - i);
}

}  // namespace

void RotateHead(float* x, const float* cos_sin, int64_t half, bool interleaved) {
  interleaved ? RotateInterleaved(x, cos_sin, half) : RotateHalves(x, cos_sin, half);
}

void ConvertRow(const float* x, int64_t n, void* out, DType out_dtype) {
  switch (out_dtype) {
    case DType::kF32:
      return Convert(x, n, static_cast<float*>(out));
    case DType::kBF16:
      return Convert(x, n, static_cast<uint16_t*>(out));
    case DType::kF16:
      return Convert(x, n, static_cast<Float16*>(out));
  }
}

}  // namespace runahead::RUNAHEAD_ISA
