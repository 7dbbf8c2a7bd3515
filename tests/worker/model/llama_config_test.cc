#include "worker/model/llama_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
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

// The keys of a model without their architecture, any of which a test may change or (nothing) leave out, and an
// embedding of [hidden, 300].
struct Keys {
  std::map<std::string, std::optional<uint32_t>> numbers = {{"block_count", 2},          {"embedding_length", 64},
                                                            {"attention.head_count", 4}, {"attention.head_count_kv", 2},
                                                            {"feed_forward_length", 96}, {"context_length", 128},
                                                            {"rope.dimension_count", 16}};
  std::optional<float> eps = 1e-5f;
  std::string architecture = "llama";
  std::string rope_scaling;
  std::optional<float> rope_factor;
  int64_t embedding_columns = 64;
  std::map<std::string, std::vector<int64_t>> tensors;  // beside the embedding, of zeros: columns, then rows
};

std::shared_ptr<const ModelFile> Build(const Keys& keys) {
  GgufBuilder builder;
  const std::string prefix = keys.architecture + ".";
  if (keys.eps.has_value()) builder.AddFloat(prefix + "attention.layer_norm_rms_epsilon", *keys.eps);
  if (!keys.rope_scaling.empty()) builder.AddString(prefix + "rope.scaling.type", keys.rope_scaling);
  if (keys.rope_factor.has_value()) builder.AddFloat(prefix + "rope.scaling.factor", *keys.rope_factor);
  for (const auto& [name, dims] : keys.tensors) {
    const int64_t elements = std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
    builder.AddTensor(name, WeightType::kF32, dims, std::string(elements * sizeof(float), '\0'));
  }
  std::map<std::string, std::optional<uint32_t>> numbers;
  for (const auto& [key, value] : keys.numbers) numbers[prefix + key] = value;
  return ConfigFile(std::move(builder), keys.architecture, numbers, keys.embedding_columns);
}

Keys Of(const std::string& architecture) {
  Keys keys;
  keys.architecture = architecture;
  return keys;
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
  keys.numbers["attention.head_count_kv"] = std::nullopt;
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
  refused(with("block_count", std::nullopt), "llama.block_count");
  refused(with("block_count", 0), "llama.block_count");
  refused(with("embedding_length", 4000000000u), "llama.embedding_length");
  refused(with("attention.head_count_kv", 3), "llama.attention.head_count_kv");
  refused(with("rope.dimension_count", 8), "llama.rope.dimension_count");
  refused(with("attention.key_length", 15), "llama.rope.dimension_count");
  refused(with("attention.value_length", 24), "llama.attention.value_length");
  refused(with("attention.sliding_window", 4000000000u), "llama.attention.sliding_window");
  refused(with("context_length", 4000000000u), "llama.context_length");
  refused(with("expert_count", 8), "llama.expert_count");
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

TEST(LlamaConfig, OnlyLlamaMustRotateHeadsWhole) {
  for (const char* architecture : {"qwen2", "qwen3", "phi3"}) {
    Keys keys = Of(architecture);
    keys.numbers["rope.dimension_count"] = 12;
    const auto file = Build(keys);
    const auto config = ReadModelConfig(*file);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->head_dim, 16);
    EXPECT_EQ(config->rotated, 12);
    EXPECT_EQ(LlamaRotary(*file, *config)->frequencies.size(), 12u / 2);
    keys.numbers["rope.dimension_count"] = 18;
    EXPECT_THAT(std::string(ReadModelConfig(*Build(keys)).status().message()),
                HasSubstr(std::string(architecture) + ".rope.dimension_count"));
  }
}

TEST(LlamaConfig, WindowsAreOfAllLayersOrOfThoseThatTheFileNames) {
  for (const LlamaKind& kind : kLlamaKinds) {
    Keys keys = Of(kind.architecture);
    EXPECT_THAT(ReadModelConfig(*Build(keys))->windows, ElementsAre(0, 0));
    keys.numbers["attention.sliding_window"] = 32;
    EXPECT_THAT(ReadModelConfig(*Build(keys))->windows, ElementsAre(32, 32));
    keys.numbers["attention.sliding_window_from_layer"] = 1;
    EXPECT_THAT(ReadModelConfig(*Build(keys))->windows, ElementsAre(0, 32));
  }
}

TEST(LlamaConfig, NamesTheTensorsOfLongRope) {
  for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
    Keys keys = Of("phi3");
    keys.tensors[name] = {8};
    const absl::Status status = ReadModelConfig(*Build(keys)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    EXPECT_THAT(std::string(status.message()), HasSubstr("longrope"));
  }
}

TEST(LlamaRotary, TurnsByPositionTimesFrequency) {
  const auto file = Build({});
  const auto rotary = LlamaRotary(*file, *ReadModelConfig(*file));
  ASSERT_TRUE(rotary.ok());
  const std::vector<float> table = RotationTable(*rotary, 128);
  for (int64_t position : {0, 1, 127}) {
    for (int64_t d = 0; d < 8; ++d) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * d / 16);
      EXPECT_NEAR(table[position * 16 + d], std::cos(angle), 1e-5);
      EXPECT_NEAR(table[position * 16 + 8 + d], std::sin(angle), 1e-5);
    }
  }
}

TEST(LlamaConfig, ScalesRotationAndRefusesUnknownScaling) {
  Keys keys;
  keys.rope_scaling = "linear";
  keys.rope_factor = 4.0f;
  const auto scaled = Build(keys), plain = Build({});
  const ModelConfig config = *ReadModelConfig(*plain);
  EXPECT_NEAR(LlamaRotary(*scaled, config)->frequencies[3] * 4, LlamaRotary(*plain, config)->frequencies[3], 1e-6);
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

// What loading a model of one layer with these tensors, and `more`, stumbles over.
std::string FirstFault(Keys keys, const std::map<std::string, std::vector<int64_t>>& more) {
  keys.numbers["block_count"] = 1;
  keys.tensors = more;
  keys.tensors["output_norm.weight"] = {64};
  const std::shared_ptr<Device> device = *NewCpuDevice({.threads = 1, .compute_dtype = DType::kF32});
  const absl::Status status = LoadModel(Build(keys), device, kUsePrefill, [](int, int) {}).status();
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(LoadModel, NamesWhatAnArchitectureHasBesideLlamas) {
  const std::map<std::string, std::vector<int64_t>> qkv = {
      {"blk.0.attn_q.weight", {64, 64}}, {"blk.0.attn_k.weight", {64, 32}}, {"blk.0.attn_v.weight", {64, 32}}};
  EXPECT_THAT(FirstFault(Of("llama"), qkv), HasSubstr("blk.0.ffn_gate.weight"));
  EXPECT_THAT(FirstFault(Of("qwen2"), qkv), HasSubstr("blk.0.attn_q.bias"));
  EXPECT_THAT(FirstFault(Of("qwen3"), qkv), HasSubstr("blk.0.attn_q_norm.weight"));
  EXPECT_THAT(FirstFault(Of("phi3"), qkv), HasSubstr("blk.0.attn_qkv.weight"));
  std::map<std::string, std::vector<int64_t>> more = qkv;
  more["blk.0.attn_q.bias"] = {64};
  EXPECT_THAT(FirstFault(Of("qwen2"), more), HasSubstr("blk.0.attn_k.bias"));
  EXPECT_THAT(FirstFault(Of("llama"), more), HasSubstr("blk.0.attn_k.bias"));  // all three or none
  std::map<std::string, std::vector<int64_t>> normed = qkv;
  normed["blk.0.attn_q_norm.weight"] = {16};
  EXPECT_THAT(FirstFault(Of("qwen3"), normed), HasSubstr("blk.0.attn_k_norm.weight"));
}

// Phi-3's up projection is the gate, too: twice as high.
TEST(LoadModel, GateAndUpAreOneTensorOfPhi3) {
  EXPECT_THAT(FirstFault(Of("phi3"), {{"blk.0.attn_qkv.weight", {64, 128}}}), HasSubstr("blk.0.ffn_up.weight"));
  EXPECT_THAT(FirstFault(Of("phi3"), {{"blk.0.attn_qkv.weight", {64, 128}}, {"blk.0.ffn_up.weight", {64, 96}}}),
              HasSubstr("blk.0.ffn_up.weight"));
  EXPECT_THAT(FirstFault(Of("phi3"), {{"blk.0.attn_qkv.weight", {64, 128}}, {"blk.0.ffn_up.weight", {64, 192}}}),
              HasSubstr("blk.0.attn_output.weight"));
}

}  // namespace
}  // namespace runahead
