// How the elements of a weight matrix are stored, as in GGUF files: one table for all that read, decode or upload them.
// Of no other file, so that worker/format may include it, which depends on nothing else of ours.
#pragma once

#include <cstddef>
#include <cstdint>

namespace runahead {

// The types that Runahead reads; the values are the numbers of GGUF files. The Q types but the K types, and IQ4_NL, are
// blocks of 32 elements of one row:
// Q8_0 {f16 d; int8 q[32]}: w = d*q.  Q4_0 {f16 d; 4-bit q[32]}: w = d*(q-8).  Q4_1 {f16 d, m; 4-bit q}: w = d*q+m.
// Q5_0 {f16 d; u32 high bits; 4-bit low}: w = d*(q-16).  Q5_1 {f16 d, m; u32 high; 4-bit low}: w = d*q+m.
// IQ4_NL {f16 d; 4-bit q}: w = d*kIq4Levels[q].
// Nibbles: byte i of a block holds element i in its low half and element i+16 in its high half.
// The K types and IQ4_XS are superblocks of 256 elements: kernels/base/superblock.h.
enum class WeightType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
};

// How the numbers of a block lie behind its scales.
enum class BlockLayout : uint8_t {
  kPlain,       // a floating-point number
  kNibbles,     // as above
  kFifthBits,   // u32 of them, then nibbles
  kBytes,       // signed
  kSuperblock,  // kernels/base/superblock.h
};

// A row is a sequence of blocks; those of plain types have one element.
struct WeightBlock {
  WeightType type;
  const char* name;
  int elements;
  int bytes;
  int scales;  // f16 values at its head, which count among its bytes: none, d, or d and m. None of a superblock
  int bits;    // of a number
  BlockLayout layout;
  bool levels = false;  // its numbers are of kIq4Levels

  constexpr int scale_bytes() const { return 2 * scales; }
};

inline constexpr WeightBlock kWeightBlocks[] = {
    {WeightType::kF32, "F32", 1, 4, 0, 32, BlockLayout::kPlain},
    {WeightType::kF16, "F16", 1, 2, 0, 16, BlockLayout::kPlain},
    {WeightType::kBF16, "BF16", 1, 2, 0, 16, BlockLayout::kPlain},
    {WeightType::kQ4_0, "Q4_0", 32, 2 + 16, 1, 4, BlockLayout::kNibbles},
    {WeightType::kQ4_1, "Q4_1", 32, 2 + 2 + 16, 2, 4, BlockLayout::kNibbles},
    {WeightType::kQ5_0, "Q5_0", 32, 2 + 4 + 16, 1, 5, BlockLayout::kFifthBits},
    {WeightType::kQ5_1, "Q5_1", 32, 2 + 2 + 4 + 16, 2, 5, BlockLayout::kFifthBits},
    {WeightType::kQ8_0, "Q8_0", 32, 2 + 32, 1, 8, BlockLayout::kBytes},
    {WeightType::kIQ4_NL, "IQ4_NL", 32, 2 + 16, 1, 4, BlockLayout::kNibbles, true},
    {WeightType::kQ2_K, "Q2_K", 256, 84, 0, 2, BlockLayout::kSuperblock},
    {WeightType::kQ3_K, "Q3_K", 256, 110, 0, 3, BlockLayout::kSuperblock},
    {WeightType::kQ4_K, "Q4_K", 256, 144, 0, 4, BlockLayout::kSuperblock},
    {WeightType::kQ5_K, "Q5_K", 256, 176, 0, 5, BlockLayout::kSuperblock},
    {WeightType::kQ6_K, "Q6_K", 256, 210, 0, 6, BlockLayout::kSuperblock},
    {WeightType::kIQ4_XS, "IQ4_XS", 256, 136, 0, 4, BlockLayout::kSuperblock, true},
};

inline constexpr int kSuperblock = 256;

// Whether a line of the table says the same in all its columns: readers count on it.
constexpr bool IsSound(const WeightBlock& block) {
  const int of_numbers = block.elements * block.bits / 8;
  switch (block.layout) {
    case BlockLayout::kPlain:
      return block.elements == 1 && block.scales == 0 && block.bytes == of_numbers;
    case BlockLayout::kNibbles:
      return block.elements == 32 && block.bits == 4 && block.bytes == block.scale_bytes() + of_numbers;
    case BlockLayout::kFifthBits:
      return block.elements == 32 && block.bits == 5 && block.bytes == block.scale_bytes() + of_numbers;
    case BlockLayout::kBytes:
      return block.elements == 32 && block.bits == 8 && block.bytes == block.scale_bytes() + of_numbers;
    case BlockLayout::kSuperblock:
      return block.elements == kSuperblock && block.scales == 0 && block.bytes > of_numbers;
  }
  return false;
}
static_assert([] {
  for (const WeightBlock& block : kWeightBlocks) {
    if (!IsSound(block)) return false;
  }
  return true;
}());

constexpr const WeightBlock& BlockOf(WeightType type) {
  for (const WeightBlock& block : kWeightBlocks) {
    if (block.type == type) return block;
  }
  __builtin_trap();  // every WeightType is in the table
}

// Whether an element stands alone, without scales.
constexpr bool IsPlain(WeightType type) {
  return BlockOf(type).layout == BlockLayout::kPlain;
}

constexpr bool IsSuperblock(WeightType type) {
  return BlockOf(type).layout == BlockLayout::kSuperblock;
}

// Whether CPUs can multiply it with activations in 8 bits (kernels/cpu/int8).
constexpr bool HasInt8Form(WeightType type) {
  switch (BlockOf(type).layout) {
    case BlockLayout::kPlain:
      return false;
    case BlockLayout::kNibbles:
    case BlockLayout::kFifthBits:
    case BlockLayout::kBytes:
    case BlockLayout::kSuperblock:
      return true;
  }
  return false;
}

// What the 4-bit numbers of the IQ4 types stand for.
inline constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Bytes of `cols` elements of one row; `cols` is a multiple of the block's elements.
constexpr size_t WeightRowBytes(WeightType type, int64_t cols) {
  const WeightBlock& block = BlockOf(type);
  return static_cast<size_t>(cols / block.elements * block.bytes);
}

}  // namespace runahead
