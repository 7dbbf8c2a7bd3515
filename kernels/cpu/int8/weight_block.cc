#include "kernels/cpu/int8/weight_block.h"

#include <cstring>

#include "kernels/base/dtype.h"
#include "kernels/cpu/int8/product.h"

namespace runahead {
namespace {

// A block of 32 columns of one row.
struct RowBlock {
  uint8_t u[kInt8Block] = {};
  int8_t scales[2] = {};  // of superblocks
  uint8_t minima[2] = {};
};

// Where element i of row `row` lies: the byte of its lowest bits, their place in it, and the byte of its other bits in
// a plane.
size_t LowAt(const Int8Layout& layout, int64_t row, int i) {
  return i * layout.low_bits / 32 * 64 + row * 4 + i % 4;
}
int LowShift(const Int8Layout& layout, int i) {
  return i / 4 * layout.low_bits % 8;
}
size_t PlaneAt(const Int8Layout& layout, int bit, int64_t row, int i) {
  return layout.planes + 64 * (bit - layout.low_bits) + row * 4 + i % 4;
}

void PutElement(const Int8Layout& layout, int u, int64_t row, int i, uint8_t* block) {
  const int low = u & ((1 << layout.low_bits) - 1);
  block[LowAt(layout, row, i)] |= static_cast<uint8_t>(low << LowShift(layout, i));
  for (int bit = layout.low_bits; bit < layout.bits; ++bit) {
    block[PlaneAt(layout, bit, row, i)] |= static_cast<uint8_t>((u >> bit & 1) << i / 4);
  }
}

int ElementOf(const Int8Layout& layout, const uint8_t* block, int64_t row, int i) {
  int u = block[LowAt(layout, row, i)] >> LowShift(layout, i) & ((1 << layout.low_bits) - 1);
  for (int bit = layout.low_bits; bit < layout.bits; ++bit) {
    u |= (block[PlaneAt(layout, bit, row, i)] >> i / 4 & 1) << bit;
  }
  return u;
}

// Elements and, of superblocks, scales and minima. Those of other types are f16: PutHalves.
void PutBlock(const Int8Layout& layout, const RowBlock& from, int64_t row, uint8_t* block) {
  for (int i = 0; i < kInt8Block; ++i) PutElement(layout, from.u[i], row, i, block);
  for (int h = 0; h < layout.halves && layout.head != 0; ++h) {
    block[layout.scales + h * kInt8GroupRows + row] = static_cast<uint8_t>(from.scales[h]);
    if (layout.offset_bits == 0) block[layout.minima + h * kInt8GroupRows + row] = from.minima[h];
  }
}

// `count` f16 values of a row, each [16] for the group.
void PutHalves(const std::byte* from, int count, int64_t row, uint8_t* to) {
  for (int i = 0; i < count; ++i) std::memcpy(to + (i * kInt8GroupRows + row) * 2, from + 2 * i, 2);
}
float HalfOf(const uint8_t* from, int64_t row) {
  Float16 half;
  std::memcpy(&half, from + 2 * row, sizeof(half));
  return ToFloat(half);
}

// The u of a block of a file, behind its scales.
void ReadElements(BlockLayout layout, const uint8_t* from, uint8_t (&u)[kInt8Block]) {
  uint32_t high = 0;
  switch (layout) {
    case BlockLayout::kBytes:
      for (int i = 0; i < kInt8Block; ++i) u[i] = from[i] ^ 0x80;  // plus 128
      return;
    case BlockLayout::kFifthBits:
      std::memcpy(&high, from, sizeof(high));
      from += sizeof(high);
      break;
    case BlockLayout::kNibbles:
      break;
    case BlockLayout::kPlain:
    case BlockLayout::kSuperblock:
      __builtin_trap();  // is not packed, or by its parts
  }
  for (int i = 0; i < kInt8Block / 2; ++i) {
    u[i] = static_cast<uint8_t>((from[i] & 15) | (high >> i & 1) << 4);
    u[i + 16] = static_cast<uint8_t>(from[i] >> 4 | (high >> (i + 16) & 1) << 4);
  }
}

template <WeightType type>
RowBlock ReadSuperblockPart(const uint8_t* superblock, int part) {
  constexpr int kHalves = Int8LayoutOf(type).halves;
  RowBlock block;
  for (int i = 0; i < kInt8Block; ++i) {
    block.u[i] = static_cast<uint8_t>(SuperblockU<type>(superblock, part * kInt8Block + i));
  }
  for (int h = 0; h < kHalves; ++h) {
    block.scales[h] = static_cast<int8_t>(SuperblockScale<type>(superblock, part * kHalves + h));
    block.minima[h] = static_cast<uint8_t>(SuperblockMin<type>(superblock, part * kHalves + h));
  }
  return block;
}

template <WeightType type>
void PackSuperblocks(const std::byte* from, int64_t blocks, int64_t row, uint8_t* group) {
  constexpr Int8Layout kLayout = Int8LayoutOf(type);
  constexpr int kParts = kSuperblock / kInt8Block;
  for (int64_t b = 0; b < blocks; b += kParts, from += BlockOf(type).bytes) {
    uint8_t* block = group + Int8BlockAt(kLayout, b);
    PutHalves(from + SuperblockDAt(type), 1, row, block);
    if (SuperblockHasMin(type)) PutHalves(from + SuperblockMinAt(type), 1, row, block + 2 * kInt8GroupRows);
    block += kLayout.head;
    for (int part = 0; part < kParts; ++part, block += kLayout.bytes) {
      PutBlock(kLayout, ReadSuperblockPart<type>(reinterpret_cast<const uint8_t*>(from), part), row, block);
    }
  }
}

// Of half a block of a row: w = d * level + m.
struct RowScales {
  float d;
  float m = 0.0f;
};
// head: of the block's superblock, or null.
RowScales ScalesOf(const Int8Layout& layout, const uint8_t* head, const uint8_t* block, int64_t row, int half) {
  const bool minima = layout.offset_bits == 0;
  if (head == nullptr) {
    return {HalfOf(block + layout.scales, row), minima ? HalfOf(block + layout.minima, row) : 0.0f};
  }
  const int64_t at = (layout.halves == 2 ? half * kInt8GroupRows : 0) + row;
  RowScales scales = {HalfOf(head, row) * static_cast<float>(static_cast<int8_t>(block[layout.scales + at]))};
  if (minima) scales.m = -HalfOf(head + 2 * kInt8GroupRows, row) * static_cast<float>(block[layout.minima + at]);
  return scales;
}

}  // namespace

void PackInt8Row(WeightType type, const std::byte* from, int64_t blocks, int64_t in_group, std::byte* group) {
  uint8_t* const to = reinterpret_cast<uint8_t*>(group);
  if (IsSuperblock(type)) {
    return VisitSuperblock(type, [&]<WeightType kType>() { PackSuperblocks<kType>(from, blocks, in_group, to); });
  }
  const Int8Layout layout = Int8LayoutOf(type);
  for (int64_t b = 0; b < blocks; ++b, from += BlockOf(type).bytes) {
    RowBlock block;
    ReadElements(BlockOf(type).layout, reinterpret_cast<const uint8_t*>(from) + BlockOf(type).scale_bytes(), block.u);
    PutBlock(layout, block, in_group, to + b * layout.bytes);
    PutHalves(from, BlockOf(type).scales, in_group, to + b * layout.bytes + layout.scales);
  }
}

void UnpackInt8Row(WeightType type, const std::byte* group, int64_t blocks, int64_t in_group, float* out) {
  const Int8Layout layout = Int8LayoutOf(type);
  const uint8_t* block = reinterpret_cast<const uint8_t*>(group);
  const uint8_t* head = nullptr;
  for (int64_t b = 0; b < blocks; ++b, block += layout.bytes) {
    if (layout.head != 0 && b % (kSuperblock / kInt8Block) == 0) {
      head = block;
      block += layout.head;
    }
    for (int half = 0; half < 2; ++half) {
      const RowScales scales = ScalesOf(layout, head, block, in_group, half);
      for (int i = half * kInt8Block / 2; i < (half + 1) * kInt8Block / 2; ++i) {
        const int u = ElementOf(layout, block, in_group, i);
        const int level = layout.levels ? kIq4Levels[u] : layout.offset_bits == 0 ? u : u - (1 << layout.offset_bits);
        // Both products are exact: 11 bits by 7 by 7 at most.
        out[b * kInt8Block + i] = scales.d * static_cast<float>(level) + scales.m;
      }
    }
  }
}

}  // namespace runahead
