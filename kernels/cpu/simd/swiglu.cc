#include "kernels/cpu/simd/functions.h"
#include "kernels/cpu/simd/vec.h"

namespace runahead::RUNAHEAD_ISA {
namespace {

template <typename In, typename Out>
void Run(const In* gate_up, int64_t count, Out* out) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i;
    const Vec gate = LoadN(gate_up + i, n);
    const Vec silu = Div(gate, Add(Set1(1.0f), Exp(Sub(Zero(), gate))));
    StoreN(out + i, Mul(silu, LoadN(gate_up + count + i, n)), n);
  }
}

template <typename In>
void RunFrom(const In* gate_up, int64_t n, void* out, DType out_dtype) {
  if (out_dtype == DType::kBF16) {
    Run(gate_up, n, static_cast<uint16_t*>(out));
  } else {
    Run(gate_up, n, static_cast<float*>(out));
  }
}

}  // namespace

void SwiGluRow(const void* gate_up, DType in_dtype, int64_t n, void* out, DType out_dtype) {
  if (in_dtype == DType::kBF16) {
    RunFrom(static_cast<const uint16_t*>(gate_up), n, out, out_dtype);
  } else {
    RunFrom(static_cast<const float*>(gate_up), n, out, out_dtype);
  }
}

}  // namespace runahead::RUNAHEAD_ISA
