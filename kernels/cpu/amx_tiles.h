// The tile unit of AMX, as templates over `Tiles` see it. tests/kernels/cpu/emulated_tiles.h has one in memory.
#pragma once

#include <cstdint>

namespace runahead {

// What LDTILECFG reads: the shapes of the eight tiles, whole ones by default.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Written as assembly rather than with the intrinsics, which in g++ 12 neither say what memory they read and write nor
// take a tile number from a template. No compiler keeps values of its own in tiles.
// Tag: a type of the file that includes this, so that no file with other compiler flags shares the code.
template <class Tag>
struct HardwareTiles {
  // From here to Release() this thread has the tiles; what is in them is lost.
  static void Configure(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
  static void Release() { asm volatile("tilerelease"); }

  template <int kTile>
  static void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // Rows that are `stride` bytes apart.
  template <int kTile>
  static void Load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void Store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  // Tile kSum += tile kLeft times tile kRight, pairs of bf16.
  template <int kSum, int kLeft, int kRight>
  static void DotBf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
  }
  // The same of quartets of bytes, kLeft's signed and kRight's unsigned, in 32-bit integers.
  template <int kSum, int kLeft, int kRight>
  static void DotInt8() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
  }
};

}  // namespace runahead
