#include "worker/model/opt.h"

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

struct OptKeys {
  std::map<std::string, std::optional<uint32_t>> numbers = {{"opt.block_count", 2},
                                                            {"opt.embedding_length", 64},
                                                            {"opt.attention.head_count", 4},
                                                            {"opt.feed_forward_length", 96},
                                                            {"opt.context_length", 128}};
  std::optional<float> eps = 1e-5f;
  int64_t embedding_columns = 64;
};

std::shared_ptr<const ModelFile> BuildOpt(const OptKeys& keys) {
  GgufBuilder builder;
  if (keys.eps.has_value()) builder.AddFloat("opt.attention.layer_norm_epsilon", *keys.eps);
  return ConfigFile(std::move(builder), "opt", keys.numbers, keys.embedding_columns);
}

TEST(OptConfig, ReadsWhatTheFileSays) {
  const auto config = ReadModelConfig(*BuildOpt({}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->name, "opt");
  EXPECT_EQ(config->layers, 2);
  EXPECT_EQ(config->hidden, 64);
  EXPECT_EQ(config->heads, 4);
  EXPECT_EQ(config->kv_heads, 4);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->ffn, 96);
  EXPECT_EQ(config->vocab, 300);
  EXPECT_EQ(config->context_length, 128);
  EXPECT_EQ(config->norm_eps, 1e-5f);
}

TEST(OptConfig, NamesTheKeyThatIsMissingOrCannotBe) {
  const auto refused = [](const OptKeys& keys) {
    const absl::Status status = ReadModelConfig(*BuildOpt(keys)).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  for (const auto& [key, value] : OptKeys().numbers) {
    OptKeys without, zero;
    without.numbers[key] = std::nullopt;
    zero.numbers[key] = 0;
    EXPECT_THAT(refused(without), HasSubstr(key));
    EXPECT_THAT(refused(zero), HasSubstr(key));
  }
  OptKeys keys;
  keys.eps = std::nullopt;
  EXPECT_THAT(refused(keys), HasSubstr("opt.attention.layer_norm_epsilon"));
  keys.eps = -1.0f;
  EXPECT_THAT(refused(keys), HasSubstr("must not be negative"));
  keys = {};
  keys.numbers["opt.attention.head_count"] = 5;
  EXPECT_THAT(refused(keys), HasSubstr("5 heads do not divide a hidden size of 64"));
  keys = {};
  keys.embedding_columns = 32;
  EXPECT_THAT(refused(keys), HasSubstr("token_embd.weight is not [64, vocabulary]"));
}

TEST(OptLoad, NamesTheTensorThatIsMissing) {
  const auto device = *NewCpuDevice({.threads = 1, .compute_dtype = DType::kF32});
  const absl::Status status = LoadModel(BuildOpt({}), device, kUsePrefill, [](int, int) {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("position_embd.weight"));
}

}  // namespace
}  // namespace runahead
