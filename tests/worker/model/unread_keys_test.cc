#include "worker/model/unread_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/testing/config_gguf.h"
#include "worker/model/model.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A llama that says what `add` adds.
std::shared_ptr<const ModelFile> Saying(const std::function<void(GgufBuilder&)>& add) {
  GgufBuilder builder;
  builder.AddFloat("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  add(builder);
  return ConfigFile(std::move(builder), "llama",
                    {{"llama.block_count", 2},
                     {"llama.embedding_length", 64},
                     {"llama.attention.head_count", 4},
                     {"llama.feed_forward_length", 96},
                     {"llama.context_length", 128}},
                    64);
}

std::vector<std::string> Remarks(const ModelFile& file) {
  const auto config = ReadModelConfig(file);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? config->remarks : std::vector<std::string>();
}

TEST(UnreadKeys, ThatSayNothingAreNotSpokenOf) {
  const auto file = Saying([](GgufBuilder& builder) {
    builder.AddUint32("llama.vocab_size", 300);
    builder.AddUint32("llama.rope.scaling.original_context_length", 128);
    builder.AddBool("llama.attention.causal", true);
    builder.AddUint32("llama.attention.sliding_window", 0);
    builder.AddUint32("llama.expert_used_count", 0);
    builder.AddString("tokenizer.ggml.model", "gpt2");
    builder.AddBool("tokenizer.ggml.add_eos_token", false);
    builder.AddUint32("tokenizer.ggml.eom_token_id", 3);
    builder.AddString("general.license", "none");
  });
  EXPECT_THAT(Remarks(*file), IsEmpty());
}

TEST(UnreadKeys, AreNamedWhereTheySaySomething) {
  const auto file = Saying([](GgufBuilder& builder) {
    builder.AddFloat("llama.logit_scale", 0.25f);
    builder.AddUint32("llama.pooling_type", 2);
    builder.AddBool("tokenizer.ggml.add_eos_token", true);
    builder.AddUint32("tokenizer.ggml.new_token_id", 7);
  });
  for (int again = 0; again < 2; ++again) {  // what was read once is asked for anew
    EXPECT_THAT(Remarks(*file),
                ElementsAre("test.gguf: metadata key 'llama.logit_scale' is not read: what it says has no effect",
                            HasSubstr("'llama.pooling_type' is not read"),
                            HasSubstr("'tokenizer.ggml.add_eos_token' has no effect: a prompt is continued"),
                            HasSubstr("'tokenizer.ggml.new_token_id' is not read")));
  }
}

TEST(UnreadKeys, ThatChangeWhatIsComputedAreRefused) {
  const auto refused = [](const std::string& key, const std::function<void(GgufBuilder&, const std::string&)>& add) {
    const auto file = Saying([&](GgufBuilder& builder) { add(builder, key); });
    EXPECT_THAT(std::string(ReadModelConfig(*file).status().message()), HasSubstr("test.gguf: key " + key + ": "));
    EXPECT_THAT(std::string(PlanLoading(file).status().message()), HasSubstr(key));
  };
  refused("llama.attention.causal", [](GgufBuilder& builder, const std::string& key) { builder.AddBool(key, false); });
  for (const char* key : {"yarn_ext_factor", "yarn_attn_factor", "yarn_log_multiplier"}) {
    refused(absl::StrCat("llama.rope.scaling.", key),
            [](GgufBuilder& builder, const std::string& of) { builder.AddFloat(of, 1.0f); });
  }
}

// Keys are up to the file, and a log has an end.
TEST(UnreadKeys, ThatAreManyAreCounted) {
  const auto file = Saying([](GgufBuilder& builder) {
    for (int i = 0; i < 50; ++i) builder.AddUint32(absl::StrCat("llama.more_", i), 1);
  });
  ASSERT_THAT(Remarks(*file), SizeIs(21));
  EXPECT_THAT(Remarks(*file).back(), HasSubstr("30 other metadata keys are not read"));
}

}  // namespace
}  // namespace runahead
