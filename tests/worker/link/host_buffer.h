// Plain memory for link tests.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/base/buffer.h"

namespace runahead::testing {

class PlainBuffer final : public Buffer {
 public:
  explicit PlainBuffer(size_t bytes) : Buffer(static_cast<std::byte*>(std::malloc(bytes + 1)), bytes) {
    std::memset(data_, 0, bytes + 1);
  }
  ~PlainBuffer() override { std::free(data_); }
};

inline BufferRef Room(size_t bytes) {
  return BufferRef::Whole(std::make_shared<PlainBuffer>(bytes));
}

// `bytes` bytes that differ with `seed` and position.
inline BufferRef Pattern(size_t bytes, uint64_t seed) {
  BufferRef ref = Room(bytes);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (size_t i = 0; i < bytes; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    ref.data()[i] = static_cast<std::byte>(state >> 56);
  }
  return ref;
}

inline std::string_view Bytes(const BufferRef& ref) {
  return {reinterpret_cast<const char*>(ref.data()), ref.size};
}

}  // namespace runahead::testing
