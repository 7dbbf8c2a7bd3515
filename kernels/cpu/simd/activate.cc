#include "kernels/cpu/simd/functions.h"
#include "kernels/cpu/simd/vec.h"

namespace runahead::RUNAHEAD_ISA {
namespace {

Vec Silu(Vec x) {
  return Div(x, Add(Set1(1.0f), Exp(Sub(Zero(), x))));
}

// x/2 * (1 + tanh(z)) = x / (1 + e^(-2z)).
Vec GeluTanh(Vec x) {
  constexpr float kTwoRootTwoByPi = 1.5957691216f;  // 2 * sqrt(2/pi)
  const Vec cube = Mul(Mul(Mul(Set1(0.044715f), x), x), x);
  return Div(x, Add(Set1(1.0f), Exp(Mul(Set1(-kTwoRootTwoByPi), Add(x, cube)))));
}

// max(x, 0) - |x|/2 * erfc(|x| / sqrt(2)), by formula 7.1.26 of Abramowitz and Stegun, which is off by 1.5e-7 at most:
// of x/2 that is less than the rounding of a product. Where erfc is 0 in f32, |x| is cut off, so that infinity has a
// value too.
Vec Gelu(Vec x) {
  const Vec size = Min(Max(x, Sub(Zero(), x)), Set1(20.0f));
  const Vec z = Mul(size, Set1(0.70710678f));
  const Vec t = Div(Set1(1.0f), Fma(Set1(0.3275911f), z, Set1(1.0f)));
  Vec series = Set1(1.061405429f);
  for (const float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) series = Fma(series, t, Set1(c));
  const Vec erfc = Mul(Mul(series, t), Exp(Mul(Sub(Zero(), z), z)));
  return Sub(Max(Zero(), x), Mul(Mul(Set1(0.5f), size), erfc));
}

template <Activation activation>
Vec Activated(Vec x) {
  switch (activation) {
    case Activation::kRelu:
      return Max(Zero(), x);  // x where it is NaN
    case Activation::kSilu:
      return Silu(x);
    case Activation::kGelu:
      return Gelu(x);
    case Activation::kGeluTanh:
      return GeluTanh(x);
  }
}

template <Activation activation>
void Activate(float* values, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    StoreN(values + i, Activated<activation>(LoadN(values + i, count - i)), count - i);
  }
}

template <Activation activation, typename In, typename Out>
void Gate(const In* gate_up, int64_t count, Out* out) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i;
    StoreN(out + i, Mul(Activated<activation>(LoadN(gate_up + i, n)), LoadN(gate_up + count + i, n)), n);
  }
}

template <Activation activation, typename In>
void GateFrom(const In* gate_up, int64_t n, void* out, DType out_dtype) {
  if (out_dtype == DType::kBF16) {
    Gate<activation>(gate_up, n, static_cast<uint16_t*>(out));
  } else {
    Gate<activation>(gate_up, n, static_cast<float*>(out));
  }
}

// Calls function.operator()<activation>().
template <typename Function>
void ForActivation(Activation activation, const Function& function) {
  switch (activation) {
    case Activation::kRelu:
      return function.template operator()<Activation::kRelu>();
    case Activation::kSilu:
      return function.template operator()<Activation::kSilu>();
    case Activation::kGelu:
      return function.template operator()<Activation::kGelu>();
    case Activation::kGeluTanh:
      return function.template operator()<Activation::kGeluTanh>();
  }
}

}  // namespace

void ActivateRow(Activation activation, float* values, int64_t n) {
  ForActivation(activation, [&]<Activation which>() { Activate<which>(values, n); });
}

void GatedActivateRow(Activation activation, const void* gate_up, DType in_dtype, int64_t n, void* out,
                      DType out_dtype) {
  ForActivation(activation, [&]<Activation which>() {
    if (in_dtype == DType::kBF16) {
      GateFrom<which>(static_cast<const uint16_t*>(gate_up), n, out, out_dtype);
    } else {
      GateFrom<which>(static_cast<const float*>(gate_up), n, out, out_dtype);
    }
  });
}

}  // namespace runahead::RUNAHEAD_ISA
