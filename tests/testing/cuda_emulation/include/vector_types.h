// The vector types of CUDA C++, for the emulation: layouts and alignments are CUDA's.
#pragma once

struct dim3 {
  unsigned int x = 1, y = 1, z = 1;
  constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
};

struct uint3 {
  unsigned int x, y, z;
};

#define RUNAHEAD_VECTOR_TYPES(T, name)                              \
  struct alignas(2 * sizeof(T)) name##2 {                           \
    T x, y;                                                         \
  };                                                                \
  struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) name##4 { \
    T x, y, z, w;                                                   \
  };                                                                \
  inline name##2 make_##name##2(T x, T y) {                         \
    return {x, y};                                                  \
  }                                                                 \
  inline name##4 make_##name##4(T x, T y, T z, T w) {               \
    return {x, y, z, w};                                            \
  }

RUNAHEAD_VECTOR_TYPES(signed char, char)
RUNAHEAD_VECTOR_TYPES(unsigned char, uchar)
RUNAHEAD_VECTOR_TYPES(short, short)
RUNAHEAD_VECTOR_TYPES(unsigned short, ushort)
RUNAHEAD_VECTOR_TYPES(int, int)
RUNAHEAD_VECTOR_TYPES(unsigned int, uint)
RUNAHEAD_VECTOR_TYPES(float, float)
RUNAHEAD_VECTOR_TYPES(double, double)
#undef RUNAHEAD_VECTOR_TYPES
