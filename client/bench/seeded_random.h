// Numbers that follow from a seed alone, the same on every machine: those of std's distributions are not.
#pragma once

#include <cstdint>
#include <random>

namespace runahead {

// Used by one thread.
class SeededRandom {
 public:
  // Numbers of one `seed` and different `stream` have nothing to do with each other.
  SeededRandom(uint64_t seed, uint64_t stream) {
    std::seed_seq words{Low(seed), High(seed), Low(stream), High(stream)};
    engine_.seed(words);
  }

  // In [0, bound). `bound` is above 0 and far below 2^64, so that no number is likelier in any way that one could see.
  uint64_t Below(uint64_t bound) { return engine_() % bound; }
  // In [0, 1).
  double Unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

 private:
  static uint32_t Low(uint64_t value) { return static_cast<uint32_t>(value); }
  static uint32_t High(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

  std::mt19937_64 engine_;
};

}  // namespace runahead
