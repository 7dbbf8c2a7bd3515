// Rows of logits, a block for each, and the order of their elements.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/cuda/elements.cuh"

namespace runahead {

// Rises with the logit; -0 equals 0.
__device__ inline uint32_t OrderOf(float logit) {
  if (logit == 0.0f) logit = 0.0f;  // -0 too
  uint32_t bits;
  memcpy(&bits, &logit, sizeof(bits));
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// A row of logits that a block of kThreads shares.
struct LogitRow {
  static constexpr int kThreads = 1024;
  static constexpr int kPack = 4;   // floats in 16 bytes
  static constexpr int kLoads = 4;  // that a thread has under way: there are no other blocks to hide its waiting

  const float* logits;
  int cols;
  bool packed;  // every row may be read in packs

  // Calls visit(logit, id) for this thread's share, ids rising.
  template <typename Visit>
  __device__ void ForEach(const Visit& visit) const {
    constexpr int kStep = kPack * kThreads;
    for (int begin = kPack * static_cast<int>(threadIdx.x); begin < cols; begin += kLoads * kStep) {
      float values[kLoads][kPack];
#pragma unroll
      for (int l = 0; l < kLoads; ++l) {
        const int c = begin + l * kStep;
        LoadFloats<kPack>(logits + c, cols - c, packed, values[l]);
      }
#pragma unroll
      for (int l = 0; l < kLoads; ++l) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          const int id = begin + l * kStep + i;
          if (id < cols) visit(values[l][i], id);
        }
      }
    }
  }
};

}  // namespace runahead
