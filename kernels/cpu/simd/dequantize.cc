#include "kernels/cpu/simd/codec.h"
#include "kernels/cpu/simd/functions.h"

namespace runahead::RUNAHEAD_ISA {
namespace {

template <typename C>
void Run(const StoredView& w, int64_t row, float* out) {
  const uint8_t* group = reinterpret_cast<const uint8_t*>(w.groups + row / kGroupRows * w.group_bytes);
  const int64_t in_group = row % kGroupRows;
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(group) + in_group * w.blocks * C::kScales;
  const uint8_t* elements = group + w.scale_bytes + in_group * w.blocks * C::kBytes;
  for (int64_t b = 0; b < w.blocks; ++b) {
    float scale[kLanes];
    if constexpr (C::kScales > 0) LoadScales(scales + b * C::kScales, C::kScales, scale);
    const Block block = C::Decode(elements + b * C::kBytes, scale);
    const int64_t left = w.cols - b * kBlockCols;
    StoreN(out + b * kBlockCols, block.lo, left);
    if (left > kLanes) StoreN(out + b * kBlockCols + kLanes, block.hi, left - kLanes);
  }
}

}  // namespace

void DequantizeRow(const StoredView& w, int64_t row, float* out) {
  VisitType(w.type, [&]<WeightType type>() { Run<Codec<type>>(w, row, out); });
}

}  // namespace runahead::RUNAHEAD_ISA
