// The checksum that travels with bytes, so that bits which flip on the way never become KV.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

struct XXH3_state_s;

namespace runahead {

// XXH3 (64 bits) of bytes that come piece by piece. The seed says what the bytes are, so that they are never taken for
// others. One thread.
class RunningSum {
 public:
  explicit RunningSum(uint64_t seed);
  ~RunningSum();
  // Of nothing yet.
  void Reset();
  void Add(const void* data, size_t size);
  uint64_t value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  const uint64_t seed_;
  const std::unique_ptr<XXH3_state_s, Free> state_;
};

// A seed out of `count` numbers.
uint64_t SumSeed(const uint64_t* numbers, size_t count);

}  // namespace runahead
