// Where the __shared__ variables of a kernel are.
#pragma once

#include <cstddef>
#include <span>

namespace runahead::cuda_emulation {

// This thread's copy of all __shared__ variables of the library that holds `kernel`, so that they can be filled with
// what nobody may read. Empty when the kernel is not in a library made by runahead_emulated_cuda: then it cannot be
// told which of the thread-local variables are __shared__ ones.
std::span<std::byte> SharedMemoryOf(const void* kernel);

}  // namespace runahead::cuda_emulation
