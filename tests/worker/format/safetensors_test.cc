#include "worker/format/safetensors.h"

#include <cstring>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/folder_builder.h"

namespace runahead {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::Span<const std::byte> AsBytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirBytes) {
  const std::string header =
      R"({"b":{"shape":[2,3],"dtype":"BF16","data_offsets":[8,20]},"__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"none":{"dtype":"F32","shape":[0,7],"data_offsets":[8,8]},)"
      R"("scalar":{"dtype":"I64","shape":[],"data_offsets":[20,28]}}   )";
  const std::string image = SafetensorsImage(header, std::string(28, 'x'));
  const auto file = ReadSafetensors("m.safetensors", AsBytes(image));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->entries.size(), 4u);
  EXPECT_EQ(file->entries[0].name, "a");
  EXPECT_EQ(file->entries[1].name, "none");
  EXPECT_EQ(file->entries[2].name, "b");
  EXPECT_EQ(file->entries[2].dtype, "BF16");
  EXPECT_THAT(file->entries[2].shape, ElementsAre(2, 3));
  EXPECT_EQ(file->entries[2].data.data(), AsBytes(image).data() + 8 + header.size() + 8);
  EXPECT_EQ(file->entries[2].data.size(), 12u);
  EXPECT_EQ(file->entries[3].data.size(), 8u);
  EXPECT_EQ(file->head.size(), 8 + header.size());
}

TEST(Safetensors, EmptyFilesAreFine) {
  for (const char* header : {"{}", R"({"__metadata__":{}})"}) {
    const std::string image = SafetensorsImage(header, "");
    const auto file = ReadSafetensors("m.safetensors", AsBytes(image));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(file->entries.empty());
  }
}

TEST(Safetensors, TensorsGetGgufsOrderOfDimensions) {
  const std::string data(2 * 3 * 5 * 2, 'x');
  const SafetensorsEntry entry{"w", "F16", {2, 3, 5}, AsBytes(data)};
  const auto tensor = ToFileTensor(entry, "m.safetensors", "blk.0.w");
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->name, "blk.0.w");
  EXPECT_EQ(tensor->type, WeightType::kF16);
  EXPECT_THAT(tensor->dims, ElementsAre(5, 3, 2));
  EXPECT_EQ(tensor->rows(), 6);
  EXPECT_EQ(tensor->stored_as, "m.safetensors: w");
  EXPECT_EQ(ToFileTensor({"w", "F32", {1}, AsBytes(data)}, "m", "w")->type, WeightType::kF32);
  EXPECT_EQ(ToFileTensor({"w", "BF16", {1}, AsBytes(data)}, "m", "w")->type, WeightType::kBF16);
}

TEST(Safetensors, TensorsThatNoModelHasAreRefusedByName) {
  const std::string data(8, 'x');
  const auto refusal = [&](const SafetensorsEntry& entry) {
    return std::string(ToFileTensor(entry, "m.safetensors", "x").status().message());
  };
  EXPECT_THAT(
      refusal({"w", "I64", {1}, AsBytes(data)}),
      HasSubstr("m.safetensors: tensor 'w' is of type 'I64', which cannot be read; F64, F32, F16 and BF16 can"));
  EXPECT_THAT(refusal({"w", "F64", {1}, AsBytes(data)}), HasSubstr("'F64'"));  // to be rounded first
  EXPECT_THAT(refusal({"w", "F32", {}, AsBytes(data)}), HasSubstr("tensor 'w' has 0 dimensions; 1 to 4"));
  EXPECT_THAT(refusal({"w", "F32", {1, 1, 1, 1, 2}, AsBytes(data)}), HasSubstr("tensor 'w' has 5 dimensions"));
  EXPECT_THAT(refusal({"w", "F32", {3, 0}, {}}), HasSubstr("tensor 'w' has no elements"));
}

}  // namespace
}  // namespace runahead
