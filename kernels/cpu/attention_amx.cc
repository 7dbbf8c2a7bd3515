// Attention on AMX tiles. Compiled with flags of that ISA (see CMakeLists.txt).
#include "kernels/cpu/attention_amx.h"

#include "kernels/cpu/attention_vec512_bf16.h"

namespace runahead {

struct Vec512Amx : Vec512Bf16 {};

namespace {

// The tile unit. Written as assembly rather than with the intrinsics, which in g++ 12 neither say what memory they read
// and write nor take a tile number from a template. No compiler keeps values of its own in tiles.
struct HardwareTiles {
  struct alignas(64) Config {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static_assert(sizeof(Config) == 64);

  static void Configure() {
    const Config config;
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  static void Release() { asm volatile("tilerelease"); }

  template <int kTile>
  static void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
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
  static void Dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
  }
};

}  // namespace

const PrefillKernels& AmxPrefillKernels() {
  return PrefillAmx<Vec512Amx, HardwareTiles>::kKernels;
}

}  // namespace runahead
