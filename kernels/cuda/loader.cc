#include "kernels/cuda/loader.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

constexpr char kFileName[] = "librunahead_cuda.so";

std::string FindPlugin() {
  std::error_code error;
  const std::filesystem::path binary = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const auto& folder : {binary.parent_path(), binary.parent_path().parent_path() / "lib"}) {
    const std::filesystem::path file = folder / kFileName;
    if (std::filesystem::exists(file, error)) return file;
  }
  return "";
}

absl::StatusOr<const CudaPlugin*> Check(const CudaPlugin& plugin, const std::string& path) {
  if (plugin.abi != kCudaPluginAbi || std::string(plugin.build) != RUNAHEAD_BUILD_ID) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " is of another build than this binary: build both together (", RUNAHEAD_BUILD_ID, ")"));
  }
  return &plugin;
}

}  // namespace

absl::StatusOr<const CudaPlugin*> OpenCudaPlugin(const std::string& path) {
  const std::string file = path.empty() ? FindPlugin() : path;
  if (file.empty()) return absl::NotFoundError(absl::StrCat("this build has no ", kFileName));
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::UnavailableError(dlerror());
  const auto entry = reinterpret_cast<CudaPluginEntry>(dlsym(library, kCudaPluginEntry));
  if (entry == nullptr) return absl::FailedPreconditionError(absl::StrCat(file, " is no plugin of Runahead's"));
  return Check(*entry(), file);
}

}  // namespace runahead
