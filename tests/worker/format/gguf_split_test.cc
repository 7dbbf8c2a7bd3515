#include "worker/format/gguf_split.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/gguf_builder.h"
#include "worker/format/mapped_file.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

// Three files: the first has the keys and a tensor, the others one each.
class GgufSplitTest : public ::testing::Test {
 protected:
  ~GgufSplitTest() override {
    for (int file = 1; file <= 3; ++file) std::filesystem::remove(PathOf(file));
  }
  std::string PathOf(int file) const {
    return absl::StrFormat("%s/gguf_split_%d-%05d-of-00003.gguf", ::testing::TempDir(), getpid(), file);
  }
  static GgufBuilder FileOf(int file, int files = 3, int tensors = 3) {
    GgufBuilder builder;
    if (file == 1) {
      builder.AddString("general.architecture", "llama");
      builder.AddUint32("llama.block_count", 2);
    }
    builder.AddRaw("split.no", 2, std::string{static_cast<char>(file - 1), 0});  // 16 bits, as gguf's writer
    builder.AddRaw("split.count", 2, std::string{static_cast<char>(files), 0});
    builder.AddInt32("split.tensors.count", tensors);
    builder.AddTensor(absl::StrCat("t", file), WeightType::kF32, {8}, std::string(32, static_cast<char>('0' + file)));
    return builder;
  }
  void WriteAll() const {
    for (int file = 1; file <= 3; ++file) ASSERT_TRUE(FileOf(file).Write(PathOf(file)).ok());
  }
  std::string Refusal(int opened = 1) const {
    const auto file = OpenModelFile(PathOf(opened));
    EXPECT_FALSE(file.ok());
    return std::string(file.status().message());
  }
};

TEST_F(GgufSplitTest, TheFirstOpensAll) {
  WriteAll();
  const auto opened = OpenModelFile(PathOf(1));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const ModelFile& file = **opened;
  EXPECT_EQ(file.path(), PathOf(1));
  EXPECT_EQ(*file.GetUint("llama.block_count"), 2u);
  ASSERT_THAT(file.tensors(), SizeIs(3));
  for (int number = 1; number <= 3; ++number) {
    const auto tensor = file.FindTensor(absl::StrCat("t", number));
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ((*tensor)->data.back(), static_cast<std::byte>('0' + number));
  }
  ASSERT_THAT(file.parts(), SizeIs(3));
  for (const ModelFile::Part& part : file.parts()) EXPECT_EQ(FileNumbers(part.path), part.numbers);
  EXPECT_THAT(file.weight_files(), SizeIs(3));
  EXPECT_THAT(file.remarks(), SizeIs(0));
}

TEST_F(GgufSplitTest, AnotherThanTheFirstIsNamedAndWhichToGive) {
  WriteAll();
  EXPECT_EQ(Refusal(2), absl::StrCat(PathOf(2), ": this is file 2 of the 3 of a model: give the first, ", PathOf(1)));
}

TEST_F(GgufSplitTest, AMissingFileIsNamed) {
  WriteAll();
  std::filesystem::remove(PathOf(3));
  EXPECT_EQ(Refusal(), absl::StrCat(PathOf(3), " is missing: ", PathOf(1), " says that the model is in 3 files"));
  EXPECT_EQ(OpenModelFile(PathOf(1)).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(GgufSplitTest, FilesThatContradictEachOtherAreNamed) {
  WriteAll();
  ASSERT_TRUE(FileOf(2).Write(PathOf(3)).ok());
  EXPECT_THAT(Refusal(), AllOf(StartsWith(PathOf(3)), HasSubstr("'split.no' and 'split.count' are 1 and 3"),
                               HasSubstr("they must be 2 and 3")));
  ASSERT_TRUE(FileOf(3, 4).Write(PathOf(3)).ok());
  EXPECT_THAT(Refusal(), AllOf(StartsWith(PathOf(3)), HasSubstr("are 2 and 4")));
  ASSERT_TRUE(GgufBuilder().Write(PathOf(3)).ok());
  EXPECT_THAT(Refusal(), AllOf(StartsWith(PathOf(3)), HasSubstr("are 0 and 0")));
  GgufBuilder twice = FileOf(3);
  twice.AddTensor("t1", WeightType::kF32, {8}, std::string(32, 'x'));
  ASSERT_TRUE(twice.Write(PathOf(3)).ok());
  EXPECT_THAT(Refusal(), AllOf(StartsWith(PathOf(3)), HasSubstr("tensor 't1' is in a file before it, too")));
  ASSERT_TRUE(FileOf(3).Write(PathOf(3)).ok());
  ASSERT_TRUE(FileOf(1, 3, 4).Write(PathOf(1)).ok());
  EXPECT_THAT(Refusal(), AllOf(StartsWith(PathOf(1)), HasSubstr("'split.tensors.count' is 4, and the 3 files have 3")));
}

TEST_F(GgufSplitTest, NamesMustBeThoseOfASplit) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/gguf_split_", getpid(), ".gguf");
  ASSERT_TRUE(FileOf(1).Write(path).ok());
  EXPECT_THAT(std::string(OpenModelFile(path).status().message()),
              AllOf(StartsWith(path), HasSubstr("must end with -00001-of-00003.gguf")));
  ASSERT_TRUE(FileOf(1, 1, 1).Write(path).ok());  // a split into one
  EXPECT_TRUE(OpenModelFile(path).ok());
  GgufBuilder many;
  many.AddUint32("split.count", 100'000);
  ASSERT_TRUE(many.Write(path).ok());
  EXPECT_THAT(std::string(OpenModelFile(path).status().message()), HasSubstr("'split.count' is 100000; at most 4096"));
  std::filesystem::remove(path);
}

TEST_F(GgufSplitTest, KeysThatAreNotReadAreSaid) {
  WriteAll();
  GgufBuilder more = FileOf(2);
  more.AddString("general.architecture", "llama");
  more.AddUint32("llama.block_count", 3);
  ASSERT_TRUE(more.Write(PathOf(2)).ok());
  const auto file = OpenModelFile(PathOf(1));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*(*file)->GetUint("llama.block_count"), 2u);
  EXPECT_THAT((*file)->remarks(),
              ElementsAre(AllOf(StartsWith(PathOf(2)), HasSubstr("'llama.block_count' is not read"))));
}

TEST_F(GgufSplitTest, FingerprintIsOfAllFiles) {
  WriteAll();
  const uint64_t before = (*OpenModelFile(PathOf(1)))->fingerprint();
  GgufBuilder more = FileOf(3);
  more.AddString("general.note", "x");
  ASSERT_TRUE(more.Write(PathOf(3)).ok());
  EXPECT_NE((*OpenModelFile(PathOf(1)))->fingerprint(), before);
}

TEST(WithoutGgufEnding, TakesOffWhatSplittersAndConvertersAdd) {
  EXPECT_EQ(WithoutGgufEnding("/m/a.Q4_1.gguf"), "/m/a.Q4_1");
  EXPECT_EQ(WithoutGgufEnding("/m/a-00001-of-00005.gguf"), "/m/a");
  EXPECT_EQ(WithoutGgufEnding("/m/a-0001-of-0005.gguf"), "/m/a-0001-of-0005");
  EXPECT_EQ(WithoutGgufEnding("-00001-of-00005.gguf"), "-00001-of-00005");
  EXPECT_EQ(WithoutGgufEnding("/m/folder"), "/m/folder");
}

}  // namespace
}  // namespace runahead
