#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/row_ops.h"

namespace runahead {
namespace {

constexpr int64_t kMostGroup = 128;
constexpr float kMostF16 = 65504.0f;

// The scale and the minimum in front of a group's codes.
struct GroupHead {
  Float16 scale;
  Float16 minimum;
};
static_assert(sizeof(GroupHead) == 4);

GroupHead MakeHead(const float* values, int64_t n, int levels) {
  float least = kMostF16, most = -kMostF16;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    finite = finite && std::isfinite(values[i]);
    least = std::min(least, values[i]);
    most = std::max(most, values[i]);
  }
  if (!finite) return {{0x7e00}, {0}};  // NaN
  least = std::max(least, -kMostF16);
  most = std::min(most, kMostF16);
  return {ToFloat16((most - least) / static_cast<float>(levels)), ToFloat16(least)};
}

void QuantizeGroup(const float* values, const KvQuant& quant, std::byte* out) {
  const int levels = (1 << quant.bits) - 1;
  const GroupHead head = MakeHead(values, quant.group, levels);
  std::memcpy(out, &head, sizeof(head));
  uint8_t* codes = reinterpret_cast<uint8_t*>(out + sizeof(head));
  const float scale = ToFloat(head.scale), minimum = ToFloat(head.minimum);
  const auto code = [&](int64_t i) -> uint8_t {
    if (!(scale > 0.0f)) return 0;  // all the same, or NaN
    const float steps = std::nearbyint((values[i] - minimum) / scale);
    return static_cast<uint8_t>(std::clamp(steps, 0.0f, static_cast<float>(levels)));
  };
  if (quant.bits == 8) {
    for (int64_t i = 0; i < quant.group; ++i) codes[i] = code(i);
  } else {
    for (int64_t i = 0; i < quant.group; i += 2) codes[i / 2] = static_cast<uint8_t>(code(i) | code(i + 1) << 4);
  }
}

void DequantizeGroup(const std::byte* from, const KvQuant& quant, float* values) {
  GroupHead head;
  std::memcpy(&head, from, sizeof(head));
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(from + sizeof(head));
  const float scale = ToFloat(head.scale), minimum = ToFloat(head.minimum);
  for (int64_t i = 0; i < quant.group; ++i) {
    const int code = quant.bits == 8 ? codes[i] : codes[i / 2] >> (4 * (i % 2)) & 15;
    values[i] = minimum + static_cast<float>(code) * scale;
  }
}

template <typename Code>
constexpr float kMostCode = static_cast<float>((1 << (8 * sizeof(Code) - 1)) - 1);

// In 8 bits the codes and the scale are those of Int8QuantizeRow.
template <typename Code>
void QuantizeSymmetric(const float* values, int64_t n, std::byte* out) {
  constexpr float kSmallest = 0x1p-100f;
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    finite = finite && std::isfinite(values[i]);
    largest = std::max(largest, std::fabs(values[i]));
  }
  const bool zero = !finite || largest < kSmallest;
  const float factor = zero ? 0.0f : kMostCode<Code> / largest;
  const float scale = !finite ? std::numeric_limits<float>::quiet_NaN() : zero ? 0.0f : largest / kMostCode<Code>;
  std::memcpy(out, &scale, sizeof(scale));
  Code* const codes = reinterpret_cast<Code*>(out + sizeof(scale));
  for (int64_t i = 0; i < n; ++i) codes[i] = zero ? Code{0} : static_cast<Code>(std::nearbyint(values[i] * factor));
}

template <typename Code>
void DequantizeSymmetric(const std::byte* from, int64_t n, float* values) {
  float scale;
  std::memcpy(&scale, from, sizeof(scale));
  const Code* const codes = reinterpret_cast<const Code*>(from + sizeof(scale));
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(codes[i]) * scale;
}

void QuantizeAny(const float* values, const KvQuant& quant, std::byte* out) {
  if (!quant.symmetric) return QuantizeGroup(values, quant, out);
  return quant.bits == 8 ? QuantizeSymmetric<int8_t>(values, quant.group, out)
                         : QuantizeSymmetric<int16_t>(values, quant.group, out);
}

void DequantizeAny(const std::byte* from, const KvQuant& quant, float* values) {
  if (!quant.symmetric) return DequantizeGroup(from, quant, values);
  return quant.bits == 8 ? DequantizeSymmetric<int8_t>(from, quant.group, values)
                         : DequantizeSymmetric<int16_t>(from, quant.group, values);
}

}  // namespace

void RowOps::QuantizeKv(const ConstTensor& rows, const KvQuant& quant, const BufferRef& out) const {
  const size_t row_bytes = KvQuantRowBytes(rows.cols, quant);
  ForRows(rows.rows, rows.cols, [&](int64_t t) {
    std::byte* to = out.data() + t * row_bytes;
    float values[kMostGroup];
    for (int64_t begin = 0; begin < rows.cols; begin += quant.group, to += KvQuantGroupBytes(quant)) {
      LoadFloats(RowBytes(rows, t), rows.dtype, begin, quant.group, values);
      QuantizeAny(values, quant, to);
    }
  });
}

void RowOps::DequantizeKv(const ConstBufferRef& from, const KvQuant& quant, const MutTensor& out) const {
  const size_t row_bytes = KvQuantRowBytes(out.cols, quant);
  ForRows(out.rows, out.cols, [&](int64_t t) {
    const std::byte* row = from.data() + t * row_bytes;
    float values[kMostGroup];
    for (int64_t begin = 0; begin < out.cols; begin += quant.group, row += KvQuantGroupBytes(quant)) {
      DequantizeAny(row, quant, values);
      StoreFloats(values, out.dtype, begin, quant.group, RowBytes(out, t));
    }
  });
}

}  // namespace runahead
