// Activation functions in device code.
#pragma once

#include <cuda_runtime.h>

#include "kernels/base/op_params.h"

namespace runahead {

// The choice is the same for all threads of a kernel that waits for memory: making it there costs nothing to speak of.
__device__ inline float Activated(Activation activation, float x) {
  switch (activation) {
    case Activation::kRelu:
      return x < 0.0f ? 0.0f : x;  // NaN stays NaN
    case Activation::kSilu:
      return x / (1.0f + expf(-x));
    case Activation::kGelu:
      return 0.5f * x * erfcf(-0.70710678f * x);  // 1 + erf without its cancellation
    case Activation::kGeluTanh:
      break;
  }
  // x/2 * (1 + tanh(z)) = x / (1 + e^(-2z)).
  constexpr float kTwoRootTwoByPi = 1.5957691216f;  // 2 * sqrt(2/pi)
  return x / (1.0f + expf(-kTwoRootTwoByPi * (x + 0.044715f * x * x * x)));
}

}  // namespace runahead
