#include "tests/testing/cuda_emulation/shared_memory.h"

#include <link.h>

#include <cstdint>
#include <string_view>

namespace runahead::cuda_emulation {
namespace {

constexpr std::string_view kKernelLibrary = "_emulated_kernels.so";  // how runahead_emulated_cuda ends their names

struct Search {
  uintptr_t address;
  std::span<std::byte> found;
};

int Visit(dl_phdr_info* library, size_t, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  bool holds_it = false;
  size_t size = 0;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = library->dlpi_phdr[i];
    if (segment.p_type == PT_LOAD) holds_it |= search.address - library->dlpi_addr - segment.p_vaddr < segment.p_memsz;
    if (segment.p_type == PT_TLS) size = segment.p_memsz;
  }
  if (!holds_it) return 0;
  if (library->dlpi_tls_data != nullptr && std::string_view(library->dlpi_name).ends_with(kKernelLibrary)) {
    search.found = {static_cast<std::byte*>(library->dlpi_tls_data), size};
  }
  return 1;
}

}  // namespace

std::span<std::byte> SharedMemoryOf(const void* kernel) {
  Search search = {reinterpret_cast<uintptr_t>(kernel), {}};
  dl_iterate_phdr(&Visit, &search);
  return search.found;
}

}  // namespace runahead::cuda_emulation
