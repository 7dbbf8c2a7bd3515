#include "kernels/base/weights.h"

#include "kernels/base/status_macros.h"

namespace runahead {

size_t WeightRowBytes(WeightType type, int64_t cols) {
  const size_t n = static_cast<size_t>(cols);
  const size_t blocks = n / 32;
  switch (type) {
    case WeightType::kF32:
      return n * 4;
    case WeightType::kF16:
    case WeightType::kBF16:
      return n * 2;
    case WeightType::kQ8_0:
      return blocks * 34;
    case WeightType::kQ4_0:
      return blocks * 18;
    case WeightType::kQ4_1:
      return blocks * 20;
    case WeightType::kQ5_0:
      return blocks * 22;
    case WeightType::kQ5_1:
      return blocks * 24;
  }
  RUNAHEAD_CHECK(false);
}

}  // namespace runahead
