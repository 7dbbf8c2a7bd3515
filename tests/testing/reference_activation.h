// Activation functions in double.
#pragma once

#include <cmath>

#include "kernels/base/op_params.h"

namespace runahead {

inline constexpr Activation kAllActivations[] = {Activation::kRelu, Activation::kSilu, Activation::kGelu,
                                                 Activation::kGeluTanh};

inline double ReferenceActivation(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return x / 2 * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
  }
  return x;
}

}  // namespace runahead
