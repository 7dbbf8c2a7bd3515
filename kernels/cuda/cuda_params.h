// How the arrays of an op (token ids, positions, addresses of KV) reach the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_memory.h"

namespace runahead {

// Several arrays in one block of bytes, each at its offset.
class CudaParams {
 public:
  // Offset of a copy of `values`, a vector or a span.
  template <typename Values>
  size_t Add(const Values& values) {
    using T = typename Values::value_type;
    static_assert(std::is_trivially_copyable_v<T>);
    const size_t offset = bytes_.size();
    bytes_.resize(offset + Room(values.size() * sizeof(T)));
    if (!values.empty()) std::memcpy(bytes_.data() + offset, values.data(), values.size() * sizeof(T));
    return offset;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  // Powers of two, so that what lies behind an array that grows by a little stays where it is: a recorded step holds
  // as long as addresses do.
  static size_t Room(size_t bytes) {
    size_t room = 64;
    while (room < bytes) room *= 2;
    return room;
  }
  std::vector<std::byte> bytes_;
};

// Pinned memory, with as much of the GPU's beside it where that is wanted, of which a stream takes pieces that stay
// untouched while a reference to them is held. Used by one thread at a time.
class CudaParamRing {
 public:
  struct Piece {
    std::byte* host = nullptr;    // pinned
    std::byte* device = nullptr;  // as many bytes, or null
    std::shared_ptr<const void> owner;
  };
  CudaParamRing(std::shared_ptr<CudaMemory> memory, bool with_device)
      : memory_(std::move(memory)), with_device_(with_device) {}
  // RESOURCE_EXHAUSTED when there is no memory for it.
  absl::StatusOr<Piece> Take(size_t bytes);

 private:
  struct Chunk;
  const std::shared_ptr<CudaMemory> memory_;
  const bool with_device_;
  std::vector<std::shared_ptr<Chunk>> chunks_;  // the one in use last
  size_t used_ = 0;                             // of that
};

}  // namespace runahead
