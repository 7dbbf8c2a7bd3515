// The tile unit of AMX in memory.
#pragma once

#include <cstdint>

namespace runahead {

// `Vec`: a vector type of the file that includes this, so that no file with other compiler flags shares the code.
template <class Vec>
struct EmulatedTiles {
  struct Tile {
    uint32_t cells[16][16];
  };
  static inline thread_local Tile tiles[8];
  static inline thread_local bool configured = false;

  static void Configure() {
    configured = true;
    __builtin_memset(tiles, 0xff, sizeof(tiles));  // NaN: what is read must have been written
  }
  static void Release() { configured = false; }
  static Tile& At(int tile) {
    if (!configured) __builtin_trap();
    return tiles[tile];
  }
  template <int kTile>
  static void Zero() {
    __builtin_memset(At(kTile).cells, 0, sizeof(Tile));
  }
  template <int kTile>
  static void Load(const void* from, int64_t stride) {
    for (int r = 0; r < 16; ++r) __builtin_memcpy(At(kTile).cells[r], static_cast<const char*>(from) + r * stride, 64);
  }
  template <int kTile>
  static void Store(void* to, int64_t stride) {
    for (int r = 0; r < 16; ++r) __builtin_memcpy(static_cast<char*>(to) + r * stride, At(kTile).cells[r], 64);
  }
  static float AsFloat(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
  }
  template <int kSum, int kLeft, int kRight>
  static void Dot() {
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 16; ++n) {
        float sum = AsFloat(At(kSum).cells[m][n]);
        for (int k = 0; k < 16; ++k) {
          const uint32_t a = At(kLeft).cells[m][k], b = At(kRight).cells[k][n];
          sum += AsFloat(a << 16) * AsFloat(b << 16);
          sum += AsFloat(a & 0xffff0000u) * AsFloat(b & 0xffff0000u);
        }
        __builtin_memcpy(&At(kSum).cells[m][n], &sum, 4);
      }
    }
  }
};

}  // namespace runahead
