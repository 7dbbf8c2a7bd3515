// The tile unit of AMX in memory.
#pragma once

#include <cstdint>

#include "kernels/cpu/amx_tiles.h"

namespace runahead {

// As HardwareTiles, and traps where that would fault. What a tile's shape leaves out is zero.
// `Tag`: a type of the file that includes this, so that no file with other compiler flags shares the code.
template <class Tag>
struct EmulatedTiles {
  struct Tile {
    uint32_t cells[16][16];
  };
  static inline thread_local Tile tiles[8];
  static inline thread_local TileConfig shapes;
  static inline thread_local bool configured = false;
  static inline int64_t configurations = 0;  // of all threads

  static void Configure(const TileConfig& config) {
    if (configured) __builtin_trap();  // never released
    configured = true;
    __atomic_fetch_add(&configurations, 1, __ATOMIC_RELAXED);
    shapes = config;
    __builtin_memset(tiles, 0xff, sizeof(tiles));  // NaN or -1: what is read must have been written
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
    Zero<kTile>();
    for (int r = 0; r < shapes.rows[kTile]; ++r) {
      __builtin_memcpy(At(kTile).cells[r], static_cast<const char*>(from) + r * stride, shapes.row_bytes[kTile]);
    }
  }
  template <int kTile>
  static void Store(void* to, int64_t stride) {
    for (int r = 0; r < shapes.rows[kTile]; ++r) {
      __builtin_memcpy(static_cast<char*>(to) + r * stride, At(kTile).cells[r], shapes.row_bytes[kTile]);
    }
  }
  static void CheckShapes(int sum, int left, int right) {
    if (shapes.rows[sum] != shapes.rows[left] || shapes.row_bytes[sum] != shapes.row_bytes[right] ||
        shapes.row_bytes[left] != 4 * shapes.rows[right]) {
      __builtin_trap();
    }
  }
  static float AsFloat(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
  }
  template <int kSum, int kLeft, int kRight>
  static void DotBf16() {
    CheckShapes(kSum, kLeft, kRight);
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
  template <int kSum, int kLeft, int kRight>
  static void DotInt8() {
    CheckShapes(kSum, kLeft, kRight);
    for (int m = 0; m < shapes.rows[kSum]; ++m) {
      for (int k = 0; k < shapes.rows[kRight]; ++k) {
        for (int n = 0; n < shapes.row_bytes[kSum] / 4; ++n) {
          const uint32_t a = At(kLeft).cells[m][k], b = At(kRight).cells[k][n];
          for (int shift = 0; shift < 32; shift += 8) {
            At(kSum).cells[m][n] +=
                static_cast<uint32_t>(static_cast<int8_t>(a >> shift) * static_cast<int>(b >> shift & 255));
          }
        }
      }
    }
  }
};

}  // namespace runahead
