#include "kernels/cuda/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

std::string Library(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / ("lib" + name + ".so");
}

TEST(OpenCudaPlugin, TakesOneOfThisBuild) {
  const auto plugin = OpenCudaPlugin(Library("plugin_same"));
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  EXPECT_EQ((*plugin)->abi, kCudaPluginAbi);
}

// Kernels that are loaded at their first launch wait for all streams.
TEST(OpenCudaPlugin, HasAllKernelsLoadedAtStartUnlessTheUserSaysOtherwise) {
  constexpr char kName[] = "CUDA_MODULE_LOADING";
  unsetenv(kName);
  ASSERT_TRUE(OpenCudaPlugin(Library("plugin_same")).ok());
  EXPECT_STREQ(getenv(kName), "EAGER");
  unsetenv(kName);
  ProbeGpu().IgnoreError();
  EXPECT_STREQ(getenv(kName), "EAGER");
  setenv(kName, "LAZY", /*replace=*/1);
  ASSERT_TRUE(OpenCudaPlugin(Library("plugin_same")).ok());
  ProbeGpu().IgnoreError();
  EXPECT_STREQ(getenv(kName), "LAZY");
}

TEST(OpenCudaPlugin, RefusesOneOfAnotherBuildOrBorder) {
  for (const char* const name : {"plugin_other_build", "plugin_other_abi"}) {
    const absl::Status status = OpenCudaPlugin(Library(name)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("another build")) << name;
  }
}

TEST(OpenCudaPlugin, RefusesALibraryThatIsNone) {
  EXPECT_EQ(OpenCudaPlugin(Library("plugin_without_entry")).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(OpenCudaPlugin, SaysWhatTheLoaderSaysOfAFileThatIsNotThere) {
  const absl::Status status = OpenCudaPlugin("/nowhere/librunahead_cuda.so").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/librunahead_cuda.so"));
}

TEST(OpenCudaPlugin, RefusesWhatIsNoWholeLibrary) {
  std::ifstream whole(Library("plugin_same"), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(whole), {}};
  const std::string file = absl::StrCat(testing::TempDir(), "/part.", getpid(), ".so");
  for (const size_t size : {size_t{0}, size_t{10}, size_t{64}, bytes.size() / 2, bytes.size() - 1}) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes.substr(0, size);
    const absl::Status status = OpenCudaPlugin(file).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << size;
    EXPECT_THAT(std::string(status.message()), HasSubstr("install it again")) << size;
  }
  std::ofstream(file, std::ios::binary | std::ios::trunc) << std::string(1000, 'x');
  EXPECT_EQ(OpenCudaPlugin(file).status().code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(file);
}

// ctest runs it with drivers of the tests' own, and says what is to be heard of them.
TEST(ProbeGpu, SaysWhatIsMissing) {
  const char* const expected = std::getenv("RUNAHEAD_EXPECT_PROBE");
  const absl::Status status = ProbeGpu();
  if (expected == nullptr) {
    // This machine as it is: only its words are known.
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("NVIDIA driver"));
    }
    return;
  }
  EXPECT_EQ(status.ok(), std::string(expected) == "OK") << status;
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr(expected));
  }
}

}  // namespace
}  // namespace runahead
