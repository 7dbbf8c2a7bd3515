#include "kernels/cpu/int8/weight_block.h"

#include <cstring>

#include "kernels/base/dtype.h"
#include "kernels/cpu/int8/product.h"

namespace runahead {
namespace {

// The u of a block of a file, behind its scales.
void ReadElements(WeightType type, const uint8_t* from, uint8_t (&u)[kInt8Block]) {
  if (type == WeightType::kQ8_0) {
    for (int i = 0; i < kInt8Block; ++i) u[i] = from[i] ^ 0x80;  // plus 128
    return;
  }
  uint32_t high = 0;
  if (Int8LayoutOf(type).bits == 5) {
    std::memcpy(&high, from, sizeof(high));
    from += sizeof(high);
  }
  for (int i = 0; i < kInt8Block / 2; ++i) {
    u[i] = static_cast<uint8_t>((from[i] & 15) | (high >> i & 1) << 4);
    u[i + 16] = static_cast<uint8_t>(from[i] >> 4 | (high >> (i + 16) & 1) << 4);
  }
}

// Where element i of row `row` lies: the byte of its nibble, of its fifth bit or of itself.
size_t NibbleAt(int64_t row, int i) {
  return i / 8 * 64 + row * 4 + i % 4;
}
size_t BitsAt(int64_t row, int i) {
  return row * 4 + i % 4;
}
size_t ByteAt(int64_t row, int i) {
  return i / 4 * 64 + row * 4 + i % 4;
}
int NibbleShift(int i) {
  return i % 8 < 4 ? 0 : 4;
}

void PutElement(const Int8Layout& layout, uint8_t u, int64_t row, int i, uint8_t* block) {
  if (layout.bits == 8) {
    block[ByteAt(row, i)] = u;
    return;
  }
  block[NibbleAt(row, i)] |= static_cast<uint8_t>((u & 15) << NibbleShift(i));
  if (layout.bits == 5) block[layout.high + BitsAt(row, i)] |= static_cast<uint8_t>((u >> 4) << i / 4);
}

int ElementOf(const Int8Layout& layout, const uint8_t* block, int64_t row, int i) {
  if (layout.bits == 8) return block[ByteAt(row, i)];
  const int low = block[NibbleAt(row, i)] >> NibbleShift(i) & 15;
  if (layout.bits == 4) return low;
  return low | (block[layout.high + BitsAt(row, i)] >> i / 4 & 1) << 4;
}

}  // namespace

void PackInt8Row(WeightType type, const std::byte* from, int64_t blocks, int64_t in_group, std::byte* group) {
  const Int8Layout layout = Int8LayoutOf(type);
  const size_t scale_bytes = BlockOf(type).scale_bytes();
  for (int64_t b = 0; b < blocks; ++b) {
    uint8_t* const block = reinterpret_cast<uint8_t*>(group) + b * layout.bytes;
    uint8_t u[kInt8Block];
    ReadElements(type, reinterpret_cast<const uint8_t*>(from) + scale_bytes, u);
    for (int i = 0; i < kInt8Block; ++i) PutElement(layout, u[i], in_group, i, block);
    for (int s = 0; s < BlockOf(type).scales; ++s) {
      std::memcpy(block + layout.scales + (s * kInt8GroupRows + in_group) * 2, from + 2 * s, 2);
    }
    from += BlockOf(type).bytes;
  }
}

void UnpackInt8Row(WeightType type, const std::byte* group, int64_t blocks, int64_t in_group, float* out) {
  const Int8Layout layout = Int8LayoutOf(type);
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* const block = reinterpret_cast<const uint8_t*>(group) + b * layout.bytes;
    const Float16* const scales = reinterpret_cast<const Float16*>(block + layout.scales) + in_group;
    const float d = ToFloat(scales[0]);
    const float m = layout.offset_bits == 0 ? ToFloat(scales[kInt8GroupRows]) : 0.0f;
    const int offset = layout.offset_bits == 0 ? 0 : 1 << layout.offset_bits;
    for (int i = 0; i < kInt8Block; ++i) {
      // The product is exact: 11 bits by 8.
      out[b * kInt8Block + i] = d * static_cast<float>(ElementOf(layout, block, in_group, i) - offset) + m;
    }
  }
}

}  // namespace runahead
