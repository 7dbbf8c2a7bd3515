#include "kernels/cuda/loader.h"

#include <dlfcn.h>
#include <elf.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

constexpr char kFileName[] = "librunahead_cuda.so";
constexpr char kDriver[] = "libcuda.so.1";

std::string FindPlugin() {
  std::error_code error;
  const std::filesystem::path binary = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const char* const folder : {".", "../lib", "../bin"}) {
    const std::filesystem::path file = (binary.parent_path() / folder / kFileName).lexically_normal();
    if (std::filesystem::exists(file, error)) return file;
  }
  return "";
}

// A function of the driver, whose result 0 is success.
template <typename... Params>
int CallDriver(void* driver, const char* name, Params... params) {
  const auto function = reinterpret_cast<int (*)(Params...)>(dlsym(driver, name));
  return function == nullptr ? -1 : function(params...);
}

// All kernels when the GPU starts, and none at its first launch: loading one waits until every stream has run what it
// has, and a stream may wait for the thread that launches. Read by the driver when it starts; what the user says stays.
void LoadKernelsAtStart() {
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
}

// A library that was copied in part would end the process with a signal when it is loaded.
absl::Status CheckWhole(const std::string& file) {
  Elf64_Ehdr header = {};
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return absl::UnavailableError(absl::StrCat(file, ": cannot be read"));
  stream.read(reinterpret_cast<char*>(&header), sizeof(header));
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(file, error);
  const uintmax_t sections_end = header.e_shoff + uintmax_t{header.e_shnum} * header.e_shentsize;
  if (!stream || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || error || sections_end > size) {
    return absl::FailedPreconditionError(absl::StrCat(file, " is damaged (", size, " bytes): install it again"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ProbeGpu() {
  LoadKernelsAtStart();
  void* const driver = dlopen(kDriver, RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return absl::UnavailableError(absl::StrCat("no NVIDIA driver is here (", kDriver, ")"));
  if (const int code = CallDriver(driver, "cuInit", 0u); code != 0) {
    return absl::UnavailableError(
        absl::StrCat("the NVIDIA driver does not start (cuInit returned ", code, ", where 100 is: no GPU)"));
  }
  int count = 0;
  if (const int code = CallDriver(driver, "cuDeviceGetCount", &count); code != 0 || count < 1) {
    return absl::UnavailableError("the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES?)");
  }
  return absl::OkStatus();
}

absl::StatusOr<const CudaPlugin*> OpenCudaPlugin(const std::string& path) {
  const std::string file = path.empty() ? FindPlugin() : path;
  if (file.empty()) {
    return absl::NotFoundError(absl::StrCat("there is no ", kFileName,
                                            " beside this binary, in ../lib or ../bin: it was built "
                                            "without CUDA (RUNAHEAD_CUDA=ON builds it, or says what is missing)"));
  }
  LoadKernelsAtStart();
  if (absl::Status whole = CheckWhole(file); !whole.ok()) return whole;
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::UnavailableError(dlerror());
  const auto entry = reinterpret_cast<CudaPluginEntry>(dlsym(library, kCudaPluginEntry));
  if (entry == nullptr) return absl::FailedPreconditionError(absl::StrCat(file, " is no plugin of Runahead's"));
  const CudaPlugin* const plugin = entry();
  if (plugin->abi != kCudaPluginAbi || std::string_view(plugin->build) != RUNAHEAD_BUILD_ID) {
    return absl::FailedPreconditionError(absl::StrCat(file, " is of another build than this binary (border ",
                                                      plugin->abi, ", ", plugin->build, "; here ", kCudaPluginAbi, ", ",
                                                      RUNAHEAD_BUILD_ID, "): build both together"));
  }
  return plugin;
}

}  // namespace runahead
