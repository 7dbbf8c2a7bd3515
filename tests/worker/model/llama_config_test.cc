#include "worker/model/llama_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <utility>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/config_gguf.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

// The keys of a model, any of which a test may change or (nothing) leave out, and an embedding of [hidden, 300].
struct Keys {
  std::map<std::string, std::optional<uint32_t>> numbers = {
      {"llama.block_count", 2},          {"llama.embedding_length", 64},
      {"llama.attention.head_count", 4}, {"llama.attention.head_count_kv", 2},
      {"llama.feed_forward_length", 96}, {"llama.context_length", 128},
      {"llama.rope.dimension_count", 16}};
  std::optional<float> eps = 1e-5f;
  std::string architecture = "llama";
  std::string rope_scaling;
  std::optional<float> rope_factor;
  int64_t embedding_columns = 64;
};

std::shared_ptr<const ModelFile> Build(const Keys& keys) {
  GgufBuilder builder;
  if (keys.eps.has_value()) builder.AddFloat("llama.attention.layer_norm_rms_epsilon", *keys.eps);
  if (!keys.rope_scaling.empty()) builder.AddString("llama.rope.scaling.type", keys.rope_scaling);
  if (keys.rope_factor.has_value()) builder.AddFloat("llama.rope.scaling.factor", *keys.rope_factor);
  return ConfigFile(std::move(builder), keys.architecture, keys.numbers, keys.embedding_columns);
}

TEST(LlamaConfig, ReadsWhatTheFileSays) {
  const auto config = ReadModelConfig(*Build({}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers, 2);
  EXPECT_EQ(config->hidden, 64);
  EXPECT_EQ(config->heads, 4);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->ffn, 96);
  EXPECT_EQ(config->vocab, 300);
  EXPECT_EQ(config->context_length, 128);
}

TEST(LlamaConfig, KvHeadsAreTheHeadsWhereTheFileDoesNotSay) {
  Keys keys;
  keys.numbers["llama.attention.head_count_kv"] = std::nullopt;
  EXPECT_EQ(ReadModelConfig(*Build(keys))->kv_heads, 4);
}

TEST(LlamaConfig, RefusesWhatThePassCannotRunNamingTheKey) {
  const auto refused = [](const Keys& keys, const std::string& named) {
    const absl::Status status = ReadModelConfig(*Build(keys)).status();
    EXPECT_FALSE(status.ok()) << named;
    EXPECT_THAT(std::string(status.message()), HasSubstr(named));
    EXPECT_THAT(std::string(status.message()), HasSubstr("test.gguf"));
  };
  const auto with = [](const std::string& key, std::optional<uint32_t> value) {
    Keys keys;
    keys.numbers[key] = value;
    return keys;
  };
  refused(with("llama.block_count", std::nullopt), "llama.block_count");
  refused(with("llama.block_count", 0), "llama.block_count");
  refused(with("llama.embedding_length", 4000000000u), "llama.embedding_length");
  refused(with("llama.attention.head_count_kv", 3), "llama.attention.head_count_kv");
  refused(with("llama.rope.dimension_count", 8), "llama.rope.dimension_count");
  refused(with("llama.attention.key_length", 15), "llama.rope.dimension_count");
  refused(with("llama.context_length", 4000000000u), "llama.context_length");
  refused(with("llama.expert_count", 8), "llama.expert_count");
  Keys keys;
  keys.architecture = "mamba";
  refused(keys, "mamba");
  keys = {};
  keys.embedding_columns = 96;
  refused(keys, "token_embd.weight");
  keys = {};
  keys.eps = std::nullopt;
  refused(keys, "llama.attention.layer_norm_rms_epsilon");
  keys.eps = -1.0f;
  refused(keys, "layer_norm_rms_epsilon");
}

TEST(LlamaRotation, TurnsByPositionTimesFrequency) {
  const auto file = Build({});
  const ModelConfig config = *ReadModelConfig(*file);
  const auto table = LlamaRotation(*file, config);
  ASSERT_TRUE(table.ok());
  for (int64_t position : {0, 1, 127}) {
    for (int64_t d = 0; d < 8; ++d) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * d / 16);
      EXPECT_NEAR((*table)[position * 16 + d], std::cos(angle), 1e-5);
      EXPECT_NEAR((*table)[position * 16 + 8 + d], std::sin(angle), 1e-5);
    }
  }
}

TEST(LlamaConfig, ScalesRotationAndRefusesUnknownScaling) {
  Keys keys;
  keys.rope_scaling = "linear";
  keys.rope_factor = 4.0f;
  const auto scaled = Build(keys), plain = Build({});
  const ModelConfig config = *ReadModelConfig(*plain);
  EXPECT_NEAR((*LlamaRotation(*scaled, config))[4 * 16], (*LlamaRotation(*plain, config))[1 * 16], 1e-6);
  keys.rope_scaling = "su";
  EXPECT_THAT(std::string(ReadModelConfig(*Build(keys)).status().message()), HasSubstr("'su' is not supported"));
  keys.rope_scaling = "linear";
  keys.rope_factor = 0.0f;
  EXPECT_THAT(std::string(ReadModelConfig(*Build(keys)).status().message()), HasSubstr("llama.rope.scaling.factor"));
}

TEST(LoadModel, NamesTheTensorThatIsMissing) {
  const std::shared_ptr<Device> device = *NewCpuDevice({});
  const absl::Status status = LoadModel(Build({}), device, kUsePrefill, [](int, int) {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("output_norm.weight"));
}

}  // namespace
}  // namespace runahead
