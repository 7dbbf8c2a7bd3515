#include "worker/model/weights_hash.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/synthetic_folder.h"
#include "worker/format/gguf.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

std::shared_ptr<const ModelFile> Opened(const std::string& path) {
  auto file = OpenModelFile(path);
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

std::string HashOf(const std::string& path, int threads = 2) {
  return WeightsHash(Opened(path), threads).Wait();
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string PathOf(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/weights_hash_", getpid(), "_", name);
}

// Larger than a piece that is hashed at once, and no multiple of it.
SyntheticModel LargerThanAPiece() {
  SyntheticModel model;
  model.vocab = 20'001;
  model.tied = false;
  return model;
}

// Writes `name` of `folder` anew with one byte of each of its tensors changed in turn: the first, the last, and one
// between. `path` is what is opened.
void ExpectEachByteCounts(const std::string& path, const std::string& file) {
  const std::string bytes = ReadFile(file), before = HashOf(path);
  const uint64_t header = Opened(path)->fingerprint();
  int changed = 0;
  const auto opened = Opened(path);
  for (const FileTensor& tensor : opened->tensors()) {
    const size_t in_file =
        bytes.find(std::string(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()));
    if (in_file == std::string::npos) continue;  // another file of the folder has it
    for (const size_t at : {size_t{0}, tensor.data.size() / 2, tensor.data.size() - 1}) {
      std::string other = bytes;
      other[in_file + at] ^= 1;
      WriteFile(file + ".other", other);
      std::filesystem::rename(file + ".other", file);
      EXPECT_NE(HashOf(path), before) << tensor.name << " at " << at;
      EXPECT_EQ(Opened(path)->fingerprint(), header);
      ++changed;
    }
  }
  EXPECT_GT(changed, 20);
  WriteFile(file + ".other", bytes);
  std::filesystem::rename(file + ".other", file);
  EXPECT_EQ(HashOf(path), before);
}

TEST(WeightsHash, EachByteOfEachTensorCountsInAFile) {
  for (const WeightType type : {WeightType::kF32, WeightType::kQ8_0}) {
    SyntheticModel model;
    model.tied = false;
    model.biases = true;
    model.SetWeightType(type);
    const std::string path = PathOf("model.gguf");
    ASSERT_TRUE(WriteSyntheticGguf(model, path).ok());
    ExpectEachByteCounts(path, path);
    std::filesystem::remove(path);
  }
}

TEST(WeightsHash, EachByteOfEachTensorCountsInAFolder) {
  SyntheticModel model;
  model.layers = 6;
  const std::string gguf = PathOf("model.gguf"), path = PathOf("folder");
  ASSERT_TRUE(WriteSyntheticGguf(model, gguf).ok());
  WriteSyntheticFolder(*Opened(gguf), path, {.type = WeightType::kBF16, .shards = 2});
  ExpectEachByteCounts(path, path + "/model-00001-of-00002.safetensors");
  ExpectEachByteCounts(path, path + "/model-00002-of-00002.safetensors");
  std::filesystem::remove(gguf);
  std::filesystem::remove_all(path);
}

// Keys, vocabulary, template, tables, weights and what pads them: a file with another byte does not open, or is
// another.
TEST(WeightsHash, WithTheFilesFingerprintEachByteOfAFileCounts) {
  GgufBuilder builder;
  builder.AddString("general.architecture", "llama");
  builder.AddStrings("tokenizer.ggml.tokens", {"a", "bc", "<|end|>"});
  builder.AddString("tokenizer.chat_template", "{{ messages }}");
  builder.AddFloat("llama.rope.freq_base", 10000);
  builder.AddTensor("token_embd.weight", WeightType::kF32, {3}, std::string(12, 'e'));
  builder.AddTensor("output_norm.weight", WeightType::kF32, {4}, std::string(16, 'n'));
  const std::string bytes = builder.Build();
  const auto prints = [](const std::string& of) -> std::pair<uint64_t, std::string> {
    const auto owned = std::make_shared<const std::string>(of);
    const auto file = ParseGguf("a file", {reinterpret_cast<const std::byte*>(owned->data()), owned->size()}, owned);
    if (!file.ok()) return {0, ""};
    return {(*file)->fingerprint(), WeightsHash(*file, 1).Wait()};
  };
  const auto before = prints(bytes);
  EXPECT_FALSE(before.second.empty());
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string other = bytes;
    other[at] ^= 1;
    EXPECT_NE(prints(other), before) << "at " << at;
  }
}

TEST(WeightsHash, DependsOnTheBytesAndNotOnThreadsOrPaths) {
  const std::string path = PathOf("large.gguf"), copy = PathOf("copy.gguf");
  ASSERT_TRUE(WriteSyntheticGguf(LargerThanAPiece(), path).ok());
  ASSERT_GT(std::filesystem::file_size(path), size_t{9} << 20);
  const std::string hash = HashOf(path, 1);
  EXPECT_EQ(hash.size(), 32u);
  EXPECT_EQ(hash.find_first_not_of("0123456789abcdef"), std::string::npos);
  for (const int threads : {2, 3, 8}) EXPECT_EQ(HashOf(path, threads), hash);
  EXPECT_EQ(WeightsHash(Opened(path)).Wait(), hash);
  std::filesystem::copy_file(path, copy);
  EXPECT_EQ(HashOf(copy), hash);
  // The last byte, far behind the first pieces.
  std::string bytes = ReadFile(copy);
  bytes.back() ^= 0x10;
  WriteFile(copy, bytes);
  EXPECT_NE(HashOf(copy), hash);
  WeightsHash(Opened(path), 2);  // nobody waits for it
  std::filesystem::remove(path);
  std::filesystem::remove(copy);
}

}  // namespace
}  // namespace runahead
