#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/worker/format/tiny_folder.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(FolderTensors, TensorsThatCannotBeUsedAreNamed) {
  FolderBuilder unknown = TinyFolder("unknown");
  AddF32(unknown, "model.layers.0.self_attn.q_norm.weight", {2});
  unknown.WriteTensors();
  EXPECT_THAT(FolderRefusal(unknown), HasSubstr("model.safetensors: tensor 'model.layers.0.self_attn.q_norm.weight'"));
  FolderBuilder twice = TinyFolder("twice");
  AddF32(twice, "language_model.model.norm.weight", {4});
  twice.WriteTensors();
  EXPECT_THAT(FolderRefusal(twice), AllOf(HasSubstr("model.norm.weight and"), HasSubstr("are the same tensor")));
  FolderBuilder other = TinyFolder("other_type");
  other.Tensor("model.layers.0.self_attn.q_proj.bias", "F8_E4M3", {4}, "abcd");
  other.WriteTensors();
  EXPECT_THAT(FolderRefusal(other), HasSubstr("tensor 'model.layers.0.self_attn.q_proj.bias' is of type 'F8_E4M3'"));
}

TEST(FolderTensors, WhatIsNotLoadedMayBeOfAnyTypeAndShape) {
  FolderBuilder folder = TinyFolder("towers");
  folder.Tensor("vision_tower.x", "I64", {}, std::string(8, 'x'));
  folder.Tensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F64", {1}, std::string(8, 'x'));
  AddF32(folder, "model.layers.0.self_attn.rotary_emb.cos_cached", {16, 2});
  folder.WriteTensors();
  const auto file = OpenFolder(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 11u);
  EXPECT_THAT((*file)->remarks(), ElementsAre(AllOf(HasSubstr(folder.path()), HasSubstr(": 3 tensors are left out"))));
}

TEST(FolderTensors, AHeadBesideATiedEmbeddingCountsWhereItDiffers) {
  FolderBuilder equal = TinyFolder("equal_head");
  AddF32(equal, "lm_head.weight", {8, 4});
  equal.WriteTensors();
  auto file = OpenFolder(equal.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->FindTensor("output.weight").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT((*file)->remarks(), SizeIs(0));

  FolderBuilder own = TinyFolder("own_head");
  own.Tensor("lm_head.weight", "F32", {8, 4}, std::string(127, '\0') + '\1');  // in its last byte
  own.WriteTensors();
  file = OpenFolder(own.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*(*file)->FindTensor("output.weight"))->stored_as, own.path() + "/model.safetensors: lm_head.weight");
  EXPECT_THAT((*file)->remarks(),
              ElementsAre(own.path() + "/config.json: tie_word_embeddings says that the head is the embedding, but " +
                          own.path() + "/model.safetensors: lm_head.weight differs from it: that head is used"));
}

// Was: refused, for the embedding was missing.
TEST(FolderTensors, OfATiedPairEitherOneIsEnough) {
  const FolderBuilder head = TinyFolder("only_head", "", "lm_head.weight");
  head.WriteTensors();
  auto file = OpenFolder(head.path());
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string stored_as = head.path() + "/model.safetensors: lm_head.weight";
  EXPECT_EQ((*(*file)->FindTensor("token_embd.weight"))->stored_as, stored_as);
  EXPECT_FALSE((*file)->FindTensor("output.weight").ok());
  EXPECT_THAT((*file)->remarks(), ElementsAre(AllOf(HasSubstr("only " + stored_as), HasSubstr("it is both"))));

  const FolderBuilder untied = TinyFolder("untied_head", "", "lm_head.weight");
  untied.Text("config.json", absl::StrReplaceAll(absl::StrCat(kTinyConfig, "}"),
                                                 {{"\"tie_word_embeddings\":true", "\"tie_word_embeddings\":false"}}));
  untied.WriteTensors();
  EXPECT_THAT(FolderRefusal(untied), HasSubstr("tensor 'model.embed_tokens.weight' (token_embd.weight) is missing"));
}

TEST(FolderTensors, BiasesThatTheConfigurationAnnouncesAndThatAreMissingAreSaid) {
  FolderBuilder folder = TinyFolder("announced", R"(,"attention_bias":true)");
  for (const auto& [name, size] : {std::pair("q", 4), {"k", 2}, {"v", 2}}) {
    AddF32(folder, absl::StrCat("model.layers.0.self_attn.", name, "_proj.bias"), {size});
  }
  folder.WriteTensors();
  auto file = OpenFolder(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->remarks(),
              ElementsAre(AllOf(StartsWith(folder.path() + "/config.json"),
                                HasSubstr("tensor 'model.layers.0.self_attn.o_proj.bias' is missing"))));
  AddF32(folder, "model.layers.0.self_attn.o_proj.bias", {4});
  folder.WriteTensors();
  file = OpenFolder(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->remarks(), SizeIs(0));
}

TEST(FolderTensors, BiasesThatTheConfigurationDoesNotAnnounceCountAndAreSaid) {
  FolderBuilder folder = TinyFolder("unannounced");
  AddF32(folder, "model.layers.0.self_attn.k_proj.bias", {2});
  AddF32(folder, "model.layers.0.mlp.up_proj.bias", {2});
  folder.WriteTensors();
  const auto file = OpenFolder(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->FindTensor("blk.0.attn_k.bias").ok());
  EXPECT_THAT((*file)->remarks(),
              ElementsAre(AllOf(StartsWith(folder.path() + "/config.json: 2 tensors are biases that it does not"),
                                HasSubstr("(the first: 'model.layers.0."))));
}

TEST(FolderTensors, LayersBehindTheLastAreLeftOutAndSaid) {
  FolderBuilder folder = TinyFolder("more_layers");
  AddF32(folder, "model.layers.1.self_attn.q_proj.weight", {4, 4});
  AddF32(folder, "model.layers.1.whatever", {3});
  folder.WriteTensors();
  const auto file = OpenFolder(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 11u);
  EXPECT_THAT((*file)->remarks(), ElementsAre(AllOf(StartsWith(folder.path() + "/config.json: 2 tensors are left out"),
                                                    HasSubstr("num_hidden_layers says that there are 1 layers"))));
}

TEST(FolderTensors, OfF64AreRoundedToF32AndSaid) {
  FolderBuilder folder = TinyFolder("doubles");
  const double stored[] = {1.0, 1.0 + 0x1p-24, 1.0 + 0x1.8p-23, -1e300};  // the second between two f32: to the even one
  std::string bytes(sizeof(stored), '\0');
  std::memcpy(bytes.data(), stored, sizeof(stored));
  folder.Tensor("model.layers.0.self_attn.q_proj.bias", "F64", {4}, bytes);
  folder.WriteTensors(1, /*spaces=*/1);
  const auto file = OpenFolder(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  const FileTensor& tensor = **(*file)->FindTensor("blk.0.attn_q.bias");
  EXPECT_EQ(tensor.type, WeightType::kF32);
  EXPECT_THAT(tensor.dims, ElementsAre(4));
  ASSERT_EQ(tensor.data.size(), 4 * sizeof(float));
  float values[4];
  std::memcpy(values, tensor.data.data(), sizeof(values));
  EXPECT_THAT(values, ElementsAre(1.0f, 1.0f, 1.0f + 0x1p-22f, -std::numeric_limits<float>::infinity()));
  EXPECT_THAT((*file)->remarks(), Contains(AllOf(StartsWith(folder.path() + ": 1 tensors are F64 and rounded to F32"),
                                                 HasSubstr("'model.layers.0.self_attn.q_proj.bias'"))));
}

}  // namespace
}  // namespace runahead
