// Tiny random checkpoints of each attention form and weight type against transformers.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_join.h"
#include "tests/golden/golden_files.h"
#include "tests/testing/test_device.h"

namespace runahead {
namespace {

TEST(TinyGolden, F32MatchesTransformers) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  const std::string make = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "make_synthetic_gguf";
  int index = 0;
  for (GoldenCheckpoint& checkpoint : ReadGoldenCheckpoints()) {
    if (TestDeviceIsSlow()) checkpoint.prompts.resize(1);
    const std::string flags = absl::StrJoin(checkpoint.flags, " ");
    SCOPED_TRACE(flags);
    const std::string path = testing::TempDir() + "tiny-" + std::to_string(index++) + ".gguf";
    ASSERT_EQ(std::system((make + " " + flags + " " + path).c_str()), 0);
    const LoadedModel loaded = LoadForTest(path, DType::kF32, 2);
    for (const GoldenPrompt& prompt : checkpoint.prompts) ExpectGreedy(loaded, prompt);
  }
  EXPECT_GE(index, 8);
}

}  // namespace
}  // namespace runahead
