// What a CPU can do at most, as plain loops reach it: measured beside what is held against it, in the same run.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_isa.h"

namespace runahead {

inline double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Chains of multiply-adds that do not wait for one another, and no step of which is left out. A macro, since a vector
// type of AVX-512 may stand only where the compiler is allowed its instructions.
#define RUNAHEAD_MULTIPLY_ADD_LOOP(Vector, Set1, MultiplyAdd, register_class) \
  constexpr int kLoops = 4'000'000, kChains = 10;                             \
  Vector sums[kChains];                                                       \
  for (int i = 0; i < kChains; ++i) sums[i] = Set1(static_cast<float>(i));    \
  const Vector factor = Set1(0.5f);                                           \
  const auto begin = std::chrono::steady_clock::now();                        \
  for (int loop = 0; loop < kLoops; ++loop) {                                 \
    _Pragma("GCC unroll 10") for (int i = 0; i < kChains; ++i) {              \
      sums[i] = MultiplyAdd(sums[i], factor, factor);                         \
      asm volatile("" : "+" register_class(sums[i]));                         \
    }                                                                         \
  }                                                                           \
  return 2.0 * (sizeof(Vector) / sizeof(float)) * kChains * kLoops / SecondsSince(begin) / 1e9

__attribute__((target("avx2,fma"))) inline double MultiplyAdds256() {
  RUNAHEAD_MULTIPLY_ADD_LOOP(__m256, _mm256_set1_ps, _mm256_fmadd_ps, "x");
}
__attribute__((target("avx512f"))) inline double MultiplyAdds512() {
  RUNAHEAD_MULTIPLY_ADD_LOOP(__m512, _mm512_set1_ps, _mm512_fmadd_ps, "v");
}
#undef RUNAHEAD_MULTIPLY_ADD_LOOP

// GFLOP/s in f32 of `threads` at the same time, together, with the widest registers that kernels may use: the largest
// of some rounds.
inline double MultiplyAddLimit(int threads) {
  constexpr int kRounds = 5;
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> each(threads);
    std::vector<std::thread> team;
    for (double& gflops : each) {
      team.emplace_back([&gflops] {
        gflops = MultiplyAdds256();
        if (DetectCpuIsa() >= CpuIsa::kAvx512) gflops = std::max(gflops, MultiplyAdds512());
      });
    }
    for (std::thread& thread : team) thread.join();
    best = std::max(best, std::accumulate(each.begin(), each.end(), 0.0));
  }
  return best;
}

// GB/s with which one thread reads memory that no cache holds: the largest of some rounds.
__attribute__((target("avx2"))) inline double ReadLimit() {
  constexpr int kRounds = 5;
  static const std::vector<int64_t> memory((size_t{512} << 20) / sizeof(int64_t), 1);
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    __m256i sums[8] = {};
    for (size_t i = 0; i < memory.size(); i += 32) {
      const auto* const from = reinterpret_cast<const __m256i*>(&memory[i]);
      for (size_t j = 0; j < 8; ++j) sums[j] = _mm256_xor_si256(sums[j], _mm256_loadu_si256(from + j));
    }
    for (__m256i& sum : sums) asm volatile("" : "+x"(sum));
    best = std::max(best, static_cast<double>(memory.size() * sizeof(int64_t)) / SecondsSince(begin) / 1e9);
  }
  return best;
}

}  // namespace runahead
