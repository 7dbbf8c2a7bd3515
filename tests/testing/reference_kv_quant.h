// KV quantisation as op_params.h describes it, a group at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/op_params.h"

namespace runahead {

// The bytes of a group, and what they read back as.
struct ReferenceGroup {
  std::vector<std::byte> bytes;
  std::vector<float> values;
};
inline ReferenceGroup QuantizeSymmetricReference(const float* x, const KvQuant& quant) {
  const float most = static_cast<float>((1 << (quant.bits - 1)) - 1);
  float largest = 0;
  bool finite = true;
  for (int i = 0; i < quant.group; ++i) {
    finite = finite && std::isfinite(x[i]);
    largest = std::max(largest, std::abs(x[i]));
  }
  const bool zero = finite && largest < 0x1p-100f;
  const float scale = !finite ? std::bit_cast<float>(0x7fc00000) : zero ? 0.0f : largest / most;
  ReferenceGroup group;
  const auto append = [&](uint32_t bits, int bytes) {
    for (int i = 0; i < bytes; ++i) group.bytes.push_back(static_cast<std::byte>(bits >> (8 * i) & 255));
  };
  append(std::bit_cast<uint32_t>(scale), 4);
  for (int i = 0; i < quant.group; ++i) {
    const float code = !finite || zero ? 0.0f : std::nearbyint(x[i] * (most / largest));
    group.values.push_back(code * scale);
    append(static_cast<uint32_t>(static_cast<int>(code)), quant.bits / 8);
  }
  return group;
}

inline ReferenceGroup QuantizeReference(const float* x, const KvQuant& quant) {
  if (quant.symmetric) return QuantizeSymmetricReference(x, quant);
  const int levels = (1 << quant.bits) - 1;
  float least = 65504, most = -65504;
  bool finite = true;
  for (int i = 0; i < quant.group; ++i) {
    finite = finite && std::isfinite(x[i]);
    least = std::clamp(x[i], -65504.0f, least);
    most = std::clamp(x[i], most, 65504.0f);
  }
  const Float16 scale = finite ? ToFloat16((most - least) / static_cast<float>(levels)) : Float16{0x7e00};
  const Float16 minimum = finite ? ToFloat16(least) : Float16{0};
  ReferenceGroup group;
  const auto append16 = [&](uint16_t bits) {
    group.bytes.push_back(static_cast<std::byte>(bits & 255));
    group.bytes.push_back(static_cast<std::byte>(bits >> 8));
  };
  append16(scale.bits);
  append16(minimum.bits);
  for (int i = 0; i < quant.group; ++i) {
    const float steps =
        finite && ToFloat(scale) > 0
            ? std::clamp(std::nearbyint((x[i] - ToFloat(minimum)) / ToFloat(scale)), 0.0f, levels * 1.0f)
            : 0.0f;
    const int code = static_cast<int>(steps);
    group.values.push_back(ToFloat(minimum) + steps * ToFloat(scale));
    if (quant.bits == 8 || i % 2 == 0) {
      group.bytes.push_back(static_cast<std::byte>(code));
    } else {
      group.bytes.back() |= static_cast<std::byte>(code << 4);
    }
  }
  return group;
}

}  // namespace runahead
