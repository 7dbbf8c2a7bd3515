#include "kernels/cpu/simd/functions.h"
#include "kernels/cpu/simd/vec.h"

namespace runahead::RUNAHEAD_ISA {
namespace {

template <typename Out>
void Scale(const float* x, const float* weight, float scale, int64_t dim, Out* out) {
  for (int64_t d = 0; d < dim; d += kLanes) {
    const int64_t n = dim - d;
    StoreN(out + d, Mul(Mul(LoadN(x + d, n), Set1(scale)), LoadN(weight + d, n)), n);
  }
}

}  // namespace

void RmsNormRow(const float* x, const float* weight, float eps, int64_t dim, void* out, DType out_dtype) {
  Vec sum0 = Zero(), sum1 = Zero();  // two chains, for the latency of an addition
  int64_t d = 0;
  for (; d + 2 * kLanes <= dim; d += 2 * kLanes) {
    const Vec a = Load(x + d), b = Load(x + d + kLanes);
    sum0 = Fma(a, a, sum0);
    sum1 = Fma(b, b, sum1);
  }
  for (; d < dim; d += kLanes) {
    const Vec a = LoadN(x + d, dim - d);
    sum0 = Fma(a, a, sum0);
  }
  const float mean = AddLanes(Add(sum0, sum1)) / static_cast<float>(dim);
  const float scale = 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
  if (out_dtype == DType::kBF16) {
    Scale(x, weight, scale, dim, static_cast<uint16_t*>(out));
  } else {
    Scale(x, weight, scale, dim, static_cast<float*>(out));
  }
}

}  // namespace runahead::RUNAHEAD_ISA
