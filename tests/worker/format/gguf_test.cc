#include "worker/format/gguf.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/parsed_gguf.h"
#include "tests/testing/quantize.h"
#include "tests/testing/synthetic_gguf.h"
#include "worker/format/dequantize.h"

namespace runahead {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string TempPath(const std::string& name) {
  return (std::filesystem::path(testing::TempDir()) / (std::to_string(getpid()) + "." + name)).string();
}

GgufBuilder SmallFile() {
  GgufBuilder builder;
  builder.AddString("general.architecture", "llama");
  builder.AddUint32("count", 7);
  builder.AddUint64("big", std::numeric_limits<uint64_t>::max());
  builder.AddInt32("minus", -1);
  builder.AddFloat("epsilon", 1e-5f);
  builder.AddFloat("infinite", std::numeric_limits<float>::infinity());
  builder.AddBool("yes", true);
  builder.AddStrings("words", {"a", "", "\xc4\xa0the"});
  builder.AddInts("numbers", {1, -2, 3});
  builder.AddTensor("norm", WeightType::kF32, {3}, Quantize(WeightType::kF32, std::vector<float>{1, 2, 3}));
  builder.AddTensor("matrix", WeightType::kQ8_0, {32, 2}, Quantize(WeightType::kQ8_0, std::vector<float>(64, 0.5f)));
  return builder;
}

TEST(Gguf, ReadsMetadataOfEveryKind) {
  const auto file = ParseGguf(SmallFile().Build());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*(*file)->GetString("general.architecture"), "llama");
  EXPECT_EQ(*(*file)->GetUint("count"), 7u);
  EXPECT_EQ(*(*file)->GetUint("big"), std::numeric_limits<uint64_t>::max());
  EXPECT_FLOAT_EQ(static_cast<float>(*(*file)->GetFloat("epsilon")), 1e-5f);
  EXPECT_TRUE(*(*file)->GetBool("yes"));
  EXPECT_THAT(*(*file)->GetStrings("words"), ElementsAre("a", "", "\xc4\xa0the"));
  EXPECT_THAT(*(*file)->GetInts("numbers"), ElementsAre(1, -2, 3));
  EXPECT_TRUE((*file)->Has("count"));
  EXPECT_FALSE((*file)->Has("nothing"));
  EXPECT_EQ((*file)->path(), "test.gguf");
}

TEST(Gguf, ErrorsNameFileAndKeyAndWhatItIs) {
  const auto file = *ParseGguf(SmallFile().Build());
  EXPECT_EQ(file->GetUint("nothing").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(file->GetUint("nothing").status().message(), "test.gguf: metadata key 'nothing' is missing");
  const auto message = [](const auto& result) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(result.status().message());
  };
  EXPECT_EQ(message(file->GetUint("words")),
            "test.gguf: metadata key 'words' is an array whose elements are each a string; it must be an integer");
  EXPECT_THAT(message(file->GetUint("minus")), HasSubstr("'minus' is -1; it must not be negative"));
  EXPECT_THAT(message(file->GetUint("epsilon")), HasSubstr("'epsilon' is a 32-bit float; it must be an integer"));
  EXPECT_THAT(message(file->GetString("count")),
              HasSubstr("'count' is a 32-bit unsigned integer; it must be a string"));
  EXPECT_THAT(message(file->GetFloat("count")), HasSubstr("must be a float"));
  EXPECT_THAT(message(file->GetFloat("infinite")), HasSubstr("not a finite number"));
  EXPECT_THAT(message(file->GetBool("count")), HasSubstr("must be a boolean"));
  EXPECT_THAT(message(file->GetStrings("numbers")), HasSubstr("must be an array of strings"));
  EXPECT_THAT(message(file->GetInts("words")), HasSubstr("must be an array of integers"));
  EXPECT_THAT(message(file->GetInts("count")), HasSubstr("must be an array of integers"));
}

TEST(Gguf, ReadsArraysOfFloats) {
  GgufBuilder builder;
  builder.AddFloats("single", {1.5f, -2, 0});
  builder.AddRaw("double", 9,
                 GgufBuilder::Number(uint32_t{12}) + GgufBuilder::Number(uint64_t{1}) + std::string(8, '\0'));
  builder.AddFloats("infinite", {1, std::numeric_limits<float>::infinity()});
  builder.AddInts("numbers", {1});
  const auto file = *ParseGguf(builder.Build());
  EXPECT_THAT(*file->GetFloats("single"), ElementsAre(1.5, -2, 0));
  EXPECT_THAT(*file->GetFloats("double"), ElementsAre(0));
  EXPECT_THAT(std::string(file->GetFloats("infinite").status().message()),
              HasSubstr("element 1 of metadata key 'infinite' is not a finite number"));
  EXPECT_THAT(std::string(file->GetFloats("numbers").status().message()), HasSubstr("must be an array of floats"));
  EXPECT_EQ(file->GetFloats("nothing").status().code(), absl::StatusCode::kNotFound);
}

TEST(Gguf, FindsTensorsWithShapeAndData) {
  const auto file = *ParseGguf(SmallFile().Build());
  const auto norm = file->FindTensor("norm");
  ASSERT_TRUE(norm.ok());
  EXPECT_EQ((*norm)->type, WeightType::kF32);
  EXPECT_THAT((*norm)->dims, ElementsAre(3));
  EXPECT_EQ((*norm)->rows(), 1);
  const auto matrix = file->FindTensor("matrix");
  ASSERT_TRUE(matrix.ok());
  EXPECT_EQ((*matrix)->columns(), 32);
  EXPECT_EQ((*matrix)->rows(), 2);
  ASSERT_EQ((*matrix)->data.size(), 2u * 34);
  std::vector<float> row(32);
  DequantizeRow((*matrix)->type, (*matrix)->data.data() + 34, 32, row.data());
  for (float value : row) EXPECT_NEAR(value, 0.5f, 1e-3f);
  EXPECT_EQ(file->FindTensor("other").status().message(), "test.gguf: tensor 'other' is missing");
  EXPECT_EQ(file->tensors().size(), 2u);
}

TEST(Gguf, ReadsVersionTwo) {
  GgufBuilder builder = SmallFile();
  builder.header().version = 2;
  EXPECT_TRUE(ParseGguf(builder.Build()).ok());
}

TEST(Gguf, AFileWithoutTensorsIsFine) {
  GgufBuilder builder;
  builder.AddUint32("count", 1);
  const auto file = ParseGguf(builder.Build());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->tensors().empty());
}

TEST(Gguf, FingerprintTellsFilesApartAndNotPaths) {
  const std::string bytes = SmallFile().Build();
  const uint64_t fingerprint = (*ParseGguf(bytes))->fingerprint();
  EXPECT_EQ((*ParseGguf(bytes))->fingerprint(), fingerprint);
  EXPECT_NE((*ParseGguf(bytes + '\0'))->fingerprint(), fingerprint);  // size
  GgufBuilder changed = SmallFile();
  changed.AddUint32("more", 1);
  EXPECT_NE((*ParseGguf(changed.Build()))->fingerprint(), fingerprint);  // metadata
}

TEST(Gguf, OpensSyntheticCheckpoint) {
  const std::string path = TempPath("synthetic.gguf");
  SyntheticModel model;
  model.SetWeightType(WeightType::kQ4_1);
  model.tied = false;
  ASSERT_TRUE(WriteSyntheticGguf(model, path).ok());
  const auto file = OpenGguf(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*(*file)->GetUint("llama.attention.head_count_kv"), 2u);
  EXPECT_EQ((*file)->GetStrings("tokenizer.ggml.tokens")->size(), 320u);
  EXPECT_THAT((*(*file)->FindTensor("blk.1.ffn_down.weight"))->dims, ElementsAre(160, 64));
  EXPECT_EQ((*(*file)->FindTensor("output.weight"))->type, WeightType::kQ4_1);
  std::filesystem::remove(path);
}

TEST(Gguf, SyntheticCheckpointsAreReproducibleAndSeeded) {
  const auto written = [](uint64_t seed) {
    const std::string path = TempPath("seeded.gguf");
    SyntheticModel model;
    model.seed = seed;
    EXPECT_TRUE(WriteSyntheticGguf(model, path).ok());
    std::ifstream in(path, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    std::filesystem::remove(path);
    return bytes;
  };
  EXPECT_EQ(written(1), written(1));
  EXPECT_NE(written(1), written(2));
}

TEST(Gguf, OpenRefusesWhatIsNoFile) {
  EXPECT_EQ(OpenGguf("/nowhere/model.gguf").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(OpenGguf("/nowhere/model.gguf").status().message()), HasSubstr("/nowhere/model.gguf"));
  EXPECT_THAT(std::string(OpenGguf(testing::TempDir()).status().message()), HasSubstr("not a regular file"));

  const std::string empty = TempPath("empty.gguf");
  std::ofstream(empty).close();
  EXPECT_THAT(std::string(OpenGguf(empty).status().message()), HasSubstr("is empty"));
  std::filesystem::remove(empty);

  const std::string fifo = TempPath("fifo.gguf");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(std::string(OpenGguf(fifo).status().message()), HasSubstr("not a regular file"));
  std::filesystem::remove(fifo);
}

}  // namespace
}  // namespace runahead
