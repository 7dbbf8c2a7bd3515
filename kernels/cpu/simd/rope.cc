#include "kernels/cpu/simd/functions.h"
#include "kernels/cpu/simd/vec.h"

namespace runahead::RUNAHEAD_ISA {
namespace {

template <typename Out>
void Rotate(const float* x, const float* cos_sin, int64_t half, Out* out) {
  for (int64_t d = 0; d < half; d += kLanes) {
    const int64_t n = half - d;
    const Vec a = LoadN(x + d, n), b = LoadN(x + half + d, n);
    const Vec cos = LoadN(cos_sin + d, n), sin = LoadN(cos_sin + half + d, n);
    StoreN(out + d, Sub(Mul(a, cos), Mul(b, sin)), n);
    StoreN(out + half + d, Add(Mul(b, cos), Mul(a, sin)), n);
  }
}

template <typename Out>
void Convert(const float* x, int64_t count, Out* out) {
  for (int64_t i = 0; i < count; i += kLanes) StoreN(out + i, LoadN(x + i, count - i), count - i);
}

}  // namespace

void RotateHead(const float* x, const float* cos_sin, int64_t half, void* out, DType out_dtype) {
  if (out_dtype == DType::kBF16) {
    Rotate(x, cos_sin, half, static_cast<uint16_t*>(out));
  } else {
    Rotate(x, cos_sin, half, static_cast<float*>(out));
  }
}

void ConvertRow(const float* x, int64_t n, void* out, DType out_dtype) {
  if (out_dtype == DType::kBF16) {
    Convert(x, n, static_cast<uint16_t*>(out));
  } else {
    Convert(x, n, static_cast<float*>(out));
  }
}

}  // namespace runahead::RUNAHEAD_ISA
