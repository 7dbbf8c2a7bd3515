#include "worker/model/gemma_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/config_gguf.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Keys without the architecture before them.
struct GemmaKeys {
  std::string architecture = "gemma3";
  std::map<std::string, std::optional<uint32_t>> numbers = {{"block_count", 7},
                                                            {"embedding_length", 64},
                                                            {"attention.head_count", 4},
                                                            {"attention.head_count_kv", 2},
                                                            {"feed_forward_length", 96},
                                                            {"context_length", 128},
                                                            {"attention.key_length", 24},
                                                            {"attention.value_length", 24},
                                                            {"attention.sliding_window", 32}};
  std::map<std::string, std::optional<float>> floats = {{"attention.layer_norm_rms_epsilon", 1e-6f}};
  std::string scaling;
};

GemmaKeys Gemma2() {
  GemmaKeys keys;
  keys.architecture = "gemma2";
  return keys;
}

std::shared_ptr<const ModelFile> BuildGemma(const GemmaKeys& keys) {
  GgufBuilder builder;
  const std::string prefix = keys.architecture + ".";
  for (const auto& [key, value] : keys.floats) {
    if (value.has_value()) builder.AddFloat(prefix + key, *value);
  }
  if (!keys.scaling.empty()) builder.AddString(prefix + "rope.scaling.type", keys.scaling);
  std::map<std::string, std::optional<uint32_t>> numbers;
  for (const auto& [key, value] : keys.numbers) numbers[prefix + key] = value;
  return ConfigFile(std::move(builder), keys.architecture, numbers, 64);
}

GemmaTraits TraitsOf(const GemmaKeys& keys) {
  const auto file = BuildGemma(keys);
  const auto config = ReadModelConfig(*file);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *ReadGemmaTraits(ConfigKeys(*file, *file->GetString("general.architecture")), *config)
                     : GemmaTraits();
}

TEST(GemmaConfig, ReadsWhatTheFileSays) {
  const auto config = ReadModelConfig(*BuildGemma({}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers, 7);
  EXPECT_EQ(config->hidden, 64);
  EXPECT_EQ(config->heads, 4);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 24);
  EXPECT_EQ(config->rotated, 24);
  EXPECT_EQ(config->ffn, 96);
  EXPECT_EQ(config->vocab, 300);
  EXPECT_EQ(config->norm_eps, 1e-6f);
}

TEST(GemmaConfig, TheLastOfSixLayersOfTheThirdAndOfTwoOfTheSecondIsGlobal) {
  EXPECT_THAT(ReadModelConfig(*BuildGemma({}))->windows, ElementsAre(32, 32, 32, 32, 32, 0, 32));
  EXPECT_THAT(ReadModelConfig(*BuildGemma(Gemma2()))->windows, ElementsAre(32, 0, 32, 0, 32, 0, 32));
  EXPECT_THAT(TraitsOf({}).local, ElementsAre(true, true, true, true, true, false, true));
}

TEST(GemmaConfig, WhatTheFileLeavesOutIsAsItsMemberHasIt) {
  EXPECT_EQ(ReadModelConfig(*BuildGemma({}))->rope_base, 1e6f);
  EXPECT_EQ(ReadModelConfig(*BuildGemma(Gemma2()))->rope_base, 1e4f);
  const GemmaTraits third = TraitsOf({}), second = TraitsOf(Gemma2());
  EXPECT_TRUE(third.head_norm);
  EXPECT_FALSE(second.head_norm);
  EXPECT_EQ(third.attention_soft_cap, 0);
  EXPECT_EQ(third.final_soft_cap, 0);
  EXPECT_EQ(second.attention_soft_cap, 50);
  EXPECT_EQ(second.final_soft_cap, 30);
  EXPECT_EQ(third.local_rotary.frequencies, PlainFrequencies(1e4f, 24));
  EXPECT_EQ(third.global_rotary.frequencies, PlainFrequencies(1e6f, 24));
  EXPECT_EQ(second.local_rotary.frequencies, PlainFrequencies(1e4f, 24));
  EXPECT_FLOAT_EQ(third.attention_scale, 1 / std::sqrt(24.0f));
  EXPECT_EQ(third.norm_plus, 0);  // GGUF's weights of norms have it
}

// Gemma 2 27B has 46 layers, Gemma 3 27B 62: their scores are scaled by what each head has of the hidden size.
TEST(GemmaConfig, TheLargestMembersScaleByTheHiddenSize) {
  GemmaKeys second = Gemma2(), third;
  second.numbers["block_count"] = 46;
  third.numbers["block_count"] = 62;
  EXPECT_FLOAT_EQ(TraitsOf(second).attention_scale, 0.25f);
  EXPECT_FLOAT_EQ(TraitsOf(third).attention_scale, 0.25f);
  third.numbers["block_count"] = 46;
  EXPECT_FLOAT_EQ(TraitsOf(third).attention_scale, 1 / std::sqrt(24.0f));
}

TEST(GemmaConfig, OnlyGlobalLayersAreStretched) {
  GemmaKeys keys;
  keys.scaling = "linear";
  keys.floats["rope.scaling.factor"] = 8.0f;
  keys.floats["rope.freq_base_swa"] = 500.0f;
  const GemmaTraits traits = TraitsOf(keys);
  EXPECT_EQ(traits.local_rotary.frequencies, PlainFrequencies(500, 24));
  EXPECT_FLOAT_EQ(traits.global_rotary.frequencies[3], PlainFrequencies(1e6f, 24)[3] / 8);
}

TEST(GemmaConfig, NamesTheKeyThatIsMissingOrCannotBe) {
  const auto refused = [](const GemmaKeys& keys) {
    const absl::Status status = ReadModelConfig(*BuildGemma(keys)).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  for (const char* architecture : {"gemma2", "gemma3"}) {
    const std::string prefix = std::string(architecture) + ".";
    for (const char* key :
         {"block_count", "embedding_length", "attention.head_count", "feed_forward_length", "context_length"}) {
      GemmaKeys keys;
      keys.architecture = architecture;
      keys.numbers[key] = std::nullopt;
      EXPECT_THAT(refused(keys), HasSubstr(prefix + key));
    }
    for (const auto& [key, value] : std::map<std::string, float>{{"attention.layer_norm_rms_epsilon", -1},
                                                                 {"rope.freq_base", 0},
                                                                 {"attention.scale", 0},
                                                                 {"attn_logit_softcapping", -1},
                                                                 {"final_logit_softcapping", -1}}) {
      GemmaKeys keys;
      keys.architecture = architecture;
      keys.floats[key] = value;
      EXPECT_THAT(refused(keys), HasSubstr(prefix + key));
    }
  }
  GemmaKeys keys;
  keys.floats["rope.freq_base_swa"] = 0.0f;
  EXPECT_THAT(refused(keys), HasSubstr("gemma3.rope.freq_base_swa"));
  keys = {};
  keys.floats["attention.layer_norm_rms_epsilon"] = std::nullopt;
  EXPECT_THAT(refused(keys), HasSubstr("gemma3.attention.layer_norm_rms_epsilon"));
  keys = {};
  keys.numbers["attention.value_length"] = 16;
  EXPECT_THAT(refused(keys), HasSubstr("gemma3.attention.value_length"));
  keys = {};
  keys.numbers["attention.head_count_kv"] = 3;
  EXPECT_THAT(refused(keys), HasSubstr("gemma3.attention.head_count_kv"));
}

TEST(GemmaLoad, NamesTheTensorThatIsMissing) {
  const auto device = *NewCpuDevice({.threads = 1, .compute_dtype = DType::kF32});
  const absl::Status status = LoadModel(BuildGemma({}), device, kUsePrefill, [](int, int) {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("output_norm.weight"));
}

}  // namespace
}  // namespace runahead
