#include "worker/model/starcoder2.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "tests/testing/config_gguf.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Starcoder2Keys {
  std::map<std::string, std::optional<uint32_t>> numbers = {
      {"starcoder2.block_count", 2},           {"starcoder2.embedding_length", 64},
      {"starcoder2.attention.head_count", 4},  {"starcoder2.attention.head_count_kv", 2},
      {"starcoder2.feed_forward_length", 256}, {"starcoder2.context_length", 128}};
  std::optional<float> eps = 1e-5f;
  std::optional<float> rope_base = {};
  std::string scaling = {};
  int64_t embedding_columns = 64;
};

std::shared_ptr<const ModelFile> BuildStarcoder2(const Starcoder2Keys& keys) {
  GgufBuilder builder;
  if (keys.eps.has_value()) builder.AddFloat("starcoder2.attention.layer_norm_epsilon", *keys.eps);
  if (keys.rope_base.has_value()) builder.AddFloat("starcoder2.rope.freq_base", *keys.rope_base);
  if (!keys.scaling.empty()) builder.AddString("starcoder2.rope.scaling.type", keys.scaling);
  return ConfigFile(std::move(builder), "starcoder2", keys.numbers, keys.embedding_columns);
}

std::string Refused(const Starcoder2Keys& keys) {
  const absl::Status status = ReadModelConfig(*BuildStarcoder2(keys)).status();
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(Starcoder2Config, ReadsWhatTheFileSays) {
  const auto config = ReadModelConfig(*BuildStarcoder2({.rope_base = 1e5f}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers, 2);
  EXPECT_EQ(config->hidden, 64);
  EXPECT_EQ(config->heads, 4);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->rotated, 16);
  EXPECT_EQ(config->ffn, 256);
  EXPECT_EQ(config->vocab, 300);
  EXPECT_EQ(config->context_length, 128);
  EXPECT_EQ(config->norm_eps, 1e-5f);
  EXPECT_EQ(config->rope_base, 1e5f);
}

TEST(Starcoder2Config, HasWindowsInAllLayersOrInNone) {
  Starcoder2Keys keys;
  EXPECT_THAT(ReadModelConfig(*BuildStarcoder2(keys))->windows, ElementsAre(0, 0));
  keys.numbers["starcoder2.attention.sliding_window"] = 32;
  EXPECT_THAT(ReadModelConfig(*BuildStarcoder2(keys))->windows, ElementsAre(32, 32));
}

TEST(Starcoder2Config, NamesTheKeyThatIsMissingOrCannotBe) {
  for (const auto& [key, value] : Starcoder2Keys().numbers) {
    Starcoder2Keys without, zero;
    without.numbers[key] = std::nullopt;
    zero.numbers[key] = 0;
    // Without a number of KV heads, there are as many as heads.
    if (key != "starcoder2.attention.head_count_kv") {
      EXPECT_THAT(Refused(without), HasSubstr(key));
    }
    EXPECT_THAT(Refused(zero), HasSubstr(key));
  }
  EXPECT_THAT(Refused(Starcoder2Keys{.eps = std::nullopt}), HasSubstr("starcoder2.attention.layer_norm_epsilon"));
  EXPECT_THAT(Refused(Starcoder2Keys{.eps = -1.0f}), HasSubstr("must not be negative"));
  EXPECT_THAT(Refused(Starcoder2Keys{.rope_base = 0.0f}), HasSubstr("starcoder2.rope.freq_base"));
  EXPECT_THAT(Refused(Starcoder2Keys{.scaling = "su"}), HasSubstr("starcoder2.rope.scaling.type"));
  EXPECT_THAT(Refused(Starcoder2Keys{.embedding_columns = 32}), HasSubstr("token_embd.weight is not [64, vocabulary]"));
  Starcoder2Keys part;
  part.numbers["starcoder2.rope.dimension_count"] = 8;
  EXPECT_THAT(Refused(part), HasSubstr("starcoder2.rope.dimension_count: heads that are rotated in part"));
}

TEST(Starcoder2Load, NamesTheTensorThatIsMissing) {
  const absl::Status status = PlanLoading(BuildStarcoder2({})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("output_norm.weight"));
}

}  // namespace
}  // namespace runahead
