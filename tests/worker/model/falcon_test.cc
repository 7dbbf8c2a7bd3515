#include "worker/model/falcon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/config_gguf.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

struct FalconKeys {
  std::map<std::string, std::optional<uint32_t>> numbers = {
      {"falcon.block_count", 2},           {"falcon.embedding_length", 64},
      {"falcon.attention.head_count", 4},  {"falcon.attention.head_count_kv", 1},
      {"falcon.feed_forward_length", 256}, {"falcon.context_length", 128}};
  std::optional<float> eps = 1e-5f;
  std::map<std::string, bool> flags;
  std::string scaling;
  int64_t embedding_columns = 64;
};

std::shared_ptr<const ModelFile> BuildFalcon(const FalconKeys& keys) {
  GgufBuilder builder;
  if (keys.eps.has_value()) builder.AddFloat("falcon.attention.layer_norm_epsilon", *keys.eps);
  for (const auto& [key, value] : keys.flags) builder.AddBool(key, value);
  if (!keys.scaling.empty()) builder.AddString("falcon.rope.scaling.type", keys.scaling);
  return ConfigFile(std::move(builder), "falcon", keys.numbers, keys.embedding_columns);
}

std::string Refused(const FalconKeys& keys) {
  const absl::Status status = ReadModelConfig(*BuildFalcon(keys)).status();
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(FalconConfig, ReadsWhatTheFileSays) {
  const auto config = ReadModelConfig(*BuildFalcon({}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers, 2);
  EXPECT_EQ(config->hidden, 64);
  EXPECT_EQ(config->heads, 4);
  EXPECT_EQ(config->kv_heads, 1);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->rotated, 16);
  EXPECT_EQ(config->ffn, 256);
  EXPECT_EQ(config->vocab, 300);
  EXPECT_EQ(config->context_length, 128);
  EXPECT_EQ(config->norm_eps, 1e-5f);
  EXPECT_EQ(config->rope_base, 1e4f);
}

TEST(FalconConfig, NamesTheKeyThatIsMissingOrCannotBe) {
  for (const auto& [key, value] : FalconKeys().numbers) {
    FalconKeys without, zero;
    without.numbers[key] = std::nullopt;
    zero.numbers[key] = 0;
    // Without a number of KV heads, there are as many as heads.
    if (key != "falcon.attention.head_count_kv") {
      EXPECT_THAT(Refused(without), HasSubstr(key));
    }
    EXPECT_THAT(Refused(zero), HasSubstr(key));
  }
  FalconKeys keys;
  keys.eps = std::nullopt;
  EXPECT_THAT(Refused(keys), HasSubstr("falcon.attention.layer_norm_epsilon"));
  keys.eps = -1.0f;
  EXPECT_THAT(Refused(keys), HasSubstr("must not be negative"));
  keys = {};
  keys.embedding_columns = 32;
  EXPECT_THAT(Refused(keys), HasSubstr("token_embd.weight is not [64, vocabulary]"));
  keys = {};
  keys.scaling = "su";
  EXPECT_THAT(Refused(keys), HasSubstr("falcon.rope.scaling.type"));
}

TEST(FalconConfig, RefusesHeadsThatDoNotShareTheHiddenSizeOrAreRotatedInPart) {
  FalconKeys keys;
  keys.numbers["falcon.attention.key_length"] = 24;
  keys.numbers["falcon.attention.value_length"] = 24;
  EXPECT_THAT(Refused(keys), HasSubstr("falcon.attention.head_count: the heads do not share the hidden size"));
  keys = {};
  keys.numbers["falcon.rope.dimension_count"] = 8;
  EXPECT_THAT(Refused(keys), HasSubstr("not rotated whole"));
}

TEST(FalconConfig, RefusesAlibiAndMlpsThatFollowAttention) {
  FalconKeys keys;
  keys.flags = {{"falcon.alibi", true}};
  EXPECT_THAT(Refused(keys), HasSubstr("falcon.alibi: positions by ALiBi are not supported"));
  keys.flags = {{"falcon.parallel_attn", false}};
  EXPECT_THAT(Refused(keys), HasSubstr("falcon.parallel_attn"));
  // The newer decoder is parallel, whatever the key says.
  keys.flags["falcon.new_decoder_architecture"] = true;
  EXPECT_TRUE(ReadModelConfig(*BuildFalcon(keys)).ok());
  keys.flags = {{"falcon.alibi", false}, {"falcon.parallel_attn", true}};
  EXPECT_TRUE(ReadModelConfig(*BuildFalcon(keys)).ok());
}

TEST(FalconLoad, NamesTheTensorThatIsMissing) {
  const auto device = *NewCpuDevice({.threads = 1, .compute_dtype = DType::kF32});
  const absl::Status status = LoadModel(BuildFalcon({}), device, kUsePrefill, [](int, int) {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("output_norm.weight"));
}

}  // namespace
}  // namespace runahead
