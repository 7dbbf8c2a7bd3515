#include "worker/format/hf_config.h"

#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Key;
using testing::Not;
using testing::Pair;
using testing::StartsWith;
using testing::UnorderedElementsAre;
using Printed = std::map<std::string, std::string>;

std::string PrintedValue(const MetadataValue& value) {
  const auto* bytes = reinterpret_cast<const char*>(value.bytes.data());
  double real;
  uint64_t whole;
  switch (value.element) {
    case MetadataValue::Type::kString:
      return std::string(bytes, value.bytes.size());
    case MetadataValue::Type::kFloat64:
      std::memcpy(&real, bytes, sizeof(real));
      return absl::StrFormat("%.6g", real);
    case MetadataValue::Type::kUint64:
      std::memcpy(&whole, bytes, sizeof(whole));
      return absl::StrCat(whole);
    default: {
      std::string bools;
      for (const std::byte byte : value.bytes) bools += byte != std::byte{0} ? "t" : "f";
      return bools;
    }
  }
}

// GGUF's keys and what they say, without the architecture's name before them.
Printed Translated(const std::string& json, HfModel* model = nullptr) {
  const auto config = ParseJson(json, "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  MetadataWriter writer;
  const auto translated = TranslateHfConfig(*config, "config.json", writer);
  EXPECT_TRUE(translated.ok()) << translated.status();
  if (!translated.ok()) return {};
  if (model != nullptr) *model = *translated;
  Printed printed;
  for (const auto& [key, value] : writer.values()) {
    const std::string prefix = translated->architecture + ".";
    std::string name(key);
    if (name.rfind(prefix, 0) == 0) name.erase(0, prefix.size());
    printed[name] = PrintedValue(value);
  }
  return printed;
}

std::string RefusedConfig(const std::string& json) {
  const auto config = ParseJson(json, "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  MetadataWriter writer;
  const auto translated = TranslateHfConfig(*config, "config.json", writer);
  EXPECT_EQ(translated.status().code(), absl::StatusCode::kInvalidArgument) << json;
  EXPECT_THAT(std::string(translated.status().message()), StartsWith("config.json: "));
  return std::string(translated.status().message());
}

// A config of `type` with sizes that all have, and `more` behind them.
std::string Config(const std::string& type, const std::string& more = "") {
  return absl::StrCat(R"({"model_type":")", type, R"(","num_hidden_layers":2,"hidden_size":64,"intermediate_size":96,)",
                      R"("num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":512,)",
                      R"("rms_norm_eps":1e-05)", more.empty() ? "" : ",", more, "}");
}

std::string Without(const std::string& json, const std::string& part) {
  const std::string rest = absl::StrReplaceAll(json, {{part, ""}});
  EXPECT_NE(rest, json) << part;
  return rest;
}

TEST(HfConfig, LlamaByDefaults) {
  HfModel model;
  EXPECT_THAT(Translated(Config("llama"), &model),
              UnorderedElementsAre(Pair("general.architecture", "llama"), Pair("block_count", "2"),
                                   Pair("embedding_length", "64"), Pair("feed_forward_length", "96"),
                                   Pair("context_length", "512"), Pair("attention.head_count", "4"),
                                   Pair("attention.head_count_kv", "2"), Pair("attention.key_length", "16"),
                                   Pair("attention.value_length", "16"), Pair("rope.freq_base", "10000"),
                                   Pair("attention.layer_norm_rms_epsilon", "1e-05")));
  EXPECT_EQ(model.architecture, "llama");
  EXPECT_EQ(model.layers, 2);
  EXPECT_FALSE(model.tied);
}

TEST(HfConfig, LlamaWithWhatItMaySay) {
  HfModel model;
  EXPECT_THAT(Translated(Config("llama", R"("head_dim":32,"rope_theta":500000,"tie_word_embeddings":true,
                                            "hidden_act":"silu","attention_bias":true,"sliding_window":7)"),
                         &model),
              AllOf(Contains(Pair("attention.key_length", "32")), Contains(Pair("rope.freq_base", "500000")),
                    Not(Contains(Key("attention.sliding_window")))));
  EXPECT_TRUE(model.tied);
  EXPECT_THAT(Translated(Config("llama", R"("head_dim":null,"rope_scaling":null,"partial_rotary_factor":0.5)")),
              AllOf(Contains(Pair("attention.key_length", "16")), Contains(Pair("rope.dimension_count", "8")),
                    Not(Contains(Key("rope.scaling.type")))));
  const std::string none = Without(Config("llama"), R"("num_key_value_heads":2,)");
  EXPECT_THAT(Translated(none), Contains(Pair("attention.head_count_kv", "4")));
}

TEST(HfConfig, MistralsWindowIsThereUnlessItIsNull) {
  const auto window = [](const std::string& more) { return Translated(Config("mistral", more)); };
  EXPECT_THAT(window(R"("sliding_window":128)"), AllOf(Contains(Pair("attention.sliding_window", "128")),
                                                       Contains(Pair("general.architecture", "llama"))));
  EXPECT_THAT(window(""), Contains(Pair("attention.sliding_window", "4096")));
  EXPECT_THAT(window(R"("sliding_window":null)"), Not(Contains(Key("attention.sliding_window"))));
}

TEST(HfConfig, QwenHasAWindowWhereItIsUsed) {
  for (const char* type : {"qwen2", "qwen3"}) {
    EXPECT_THAT(Translated(Config(type, R"("sliding_window":128,"max_window_layers":1)")),
                AllOf(Contains(Pair("general.architecture", type)), Not(Contains(Key("attention.sliding_window")))));
    const std::string used = R"("use_sliding_window":true,"sliding_window":128)";
    EXPECT_THAT(
        Translated(Config(type, used + R"(,"max_window_layers":1)")),
        IsSupersetOf({Pair("attention.sliding_window", "128"), Pair("attention.sliding_window_from_layer", "1")}));
    EXPECT_THAT(Translated(Config(type, used)), Contains(Pair("attention.sliding_window_from_layer", "28")));
    EXPECT_THAT(Translated(Config(type, used + R"(,"layer_types":["sliding_attention","full_attention"])")),
                AllOf(Contains(Pair("attention.sliding_window_layers", "tf")),
                      Not(Contains(Key("attention.sliding_window_from_layer")))));
  }
  EXPECT_THAT(Translated(Config("qwen2")), Contains(Pair("attention.key_length", "16")));
  EXPECT_THAT(Translated(Config("qwen3")), Contains(Pair("attention.key_length", "128")));
}

TEST(HfConfig, Gemma2) {
  HfModel model;
  EXPECT_THAT(Translated(Config("gemma2", R"("hidden_activation":"gelu_pytorch_tanh","query_pre_attn_scalar":144,
                                             "sliding_window":128)"),
                         &model),
              UnorderedElementsAre(Pair("general.architecture", "gemma2"), Pair("block_count", "2"),
                                   Pair("embedding_length", "64"), Pair("feed_forward_length", "96"),
                                   Pair("context_length", "512"), Pair("attention.head_count", "4"),
                                   Pair("attention.head_count_kv", "2"), Pair("attention.key_length", "256"),
                                   Pair("attention.value_length", "256"), Pair("rope.freq_base", "10000"),
                                   Pair("attention.layer_norm_rms_epsilon", "1e-05"),
                                   Pair("attn_logit_softcapping", "50"), Pair("final_logit_softcapping", "30"),
                                   Pair("attention.scale", "0.0833333"), Pair("attention.sliding_window", "128")));
  EXPECT_TRUE(model.tied);
  EXPECT_THAT(Translated(Config("gemma2", R"("attn_logit_softcapping":null,"final_logit_softcapping":7.5)")),
              IsSupersetOf({Pair("attn_logit_softcapping", "0"), Pair("final_logit_softcapping", "7.5"),
                            Pair("attention.scale", "0.0668153"), Pair("attention.sliding_window", "4096")}));
}

// As Google's folders are: with a part for images, and what is transformers' default left out.
TEST(HfConfig, Gemma3InsideAModelThatSees) {
  HfModel model;
  EXPECT_THAT(Translated(R"({"model_type":"gemma3","vision_config":{"hidden_size":9},"text_config":{
                              "model_type":"gemma3_text","hidden_size":2560,"intermediate_size":10240,
                              "num_hidden_layers":34,"rope_scaling":{"factor":8.0,"rope_type":"linear"},
                              "sliding_window":1024}})",
                         &model),
              UnorderedElementsAre(Pair("general.architecture", "gemma3"), Pair("block_count", "34"),
                                   Pair("embedding_length", "2560"), Pair("feed_forward_length", "10240"),
                                   Pair("context_length", "131072"), Pair("attention.head_count", "8"),
                                   Pair("attention.head_count_kv", "4"), Pair("attention.key_length", "256"),
                                   Pair("attention.value_length", "256"), Pair("rope.freq_base", "1e+06"),
                                   Pair("rope.freq_base_swa", "10000"), Pair("rope.scaling.type", "linear"),
                                   Pair("rope.scaling.factor", "8"), Pair("attention.layer_norm_rms_epsilon", "1e-06"),
                                   Pair("attn_logit_softcapping", "0"), Pair("final_logit_softcapping", "0"),
                                   Pair("attention.scale", "0.0625"), Pair("attention.sliding_window", "1024"),
                                   Pair("attention.sliding_window_pattern", "6")));
  EXPECT_EQ(model.layers, 34);
  EXPECT_TRUE(model.tied);
}

TEST(HfConfig, Gemma3Alone) {
  EXPECT_THAT(Translated(Config("gemma3_text", R"("rope_local_base_freq":20000,"sliding_window_pattern":2)")),
              IsSupersetOf({Pair("rope.freq_base_swa", "20000"), Pair("attention.sliding_window_pattern", "2"),
                            Pair("attention.sliding_window", "4096")}));
  EXPECT_THAT(Translated(Config("gemma3_text", R"("_sliding_window_pattern":3)")),
              Contains(Pair("attention.sliding_window_pattern", "3")));
  EXPECT_THAT(Translated(Config("gemma3_text", R"("layer_types":["full_attention","sliding_attention"])")),
              Contains(Pair("attention.sliding_window_layers", "ft")));
}

constexpr char kFalcon[] = R"({"model_type":"falcon","num_hidden_layers":2,"hidden_size":64,"num_attention_heads":4)";

TEST(HfConfig, Falcon) {
  HfModel model;
  EXPECT_THAT(Translated(absl::StrCat(kFalcon, "}"), &model),
              UnorderedElementsAre(
                  Pair("general.architecture", "falcon"), Pair("block_count", "2"), Pair("embedding_length", "64"),
                  Pair("feed_forward_length", "256"), Pair("context_length", "2048"), Pair("attention.head_count", "4"),
                  Pair("attention.head_count_kv", "1"), Pair("attention.layer_norm_epsilon", "1e-05"),
                  Pair("rope.freq_base", "10000"), Pair("new_decoder_architecture", "f"), Pair("multi_query", "t"),
                  Pair("parallel_attn", "t"), Pair("bias", "f"), Pair("alibi", "f")));
  EXPECT_TRUE(model.tied);
  EXPECT_THAT(Translated(absl::StrCat(kFalcon, R"(,"new_decoder_architecture":true,"num_kv_heads":2,"bias":true,
                                                  "ffn_hidden_size":100,"layer_norm_epsilon":1e-6})")),
              IsSupersetOf({Pair("attention.head_count_kv", "2"), Pair("feed_forward_length", "100"), Pair("bias", "t"),
                            Pair("attention.layer_norm_epsilon", "1e-06")}));
  EXPECT_THAT(Translated(absl::StrCat(kFalcon, R"(,"multi_query":false,"num_kv_heads":2})")),
              Contains(Pair("attention.head_count_kv", "4")));
  EXPECT_THAT(RefusedConfig(absl::StrCat(kFalcon, R"(,"alibi":true})")), HasSubstr("key alibi must be false"));
  EXPECT_THAT(RefusedConfig(absl::StrCat(kFalcon, R"(,"activation":"relu"})")), HasSubstr("key activation"));
}

constexpr char kOpt[] = R"({"model_type":"opt","num_hidden_layers":2,"hidden_size":64,"num_attention_heads":4,
                            "ffn_dim":96,"max_position_embeddings":512)";

TEST(HfConfig, Opt) {
  HfModel model;
  EXPECT_THAT(Translated(absl::StrCat(kOpt, R"(,"word_embed_proj_dim":64,"do_layer_norm_before":true})"), &model),
              UnorderedElementsAre(Pair("general.architecture", "opt"), Pair("block_count", "2"),
                                   Pair("embedding_length", "64"), Pair("feed_forward_length", "96"),
                                   Pair("context_length", "512"), Pair("attention.head_count", "4"),
                                   Pair("attention.layer_norm_epsilon", "1e-05")));
  EXPECT_TRUE(model.tied);
  const auto refused = [](const std::string& more) { return RefusedConfig(absl::StrCat(kOpt, ",", more, "}")); };
  EXPECT_THAT(refused(R"("do_layer_norm_before":false)"), HasSubstr("key do_layer_norm_before must be true"));
  EXPECT_THAT(refused(R"("word_embed_proj_dim":32)"), HasSubstr("key word_embed_proj_dim differs"));
  EXPECT_THAT(refused(R"("activation_function":"gelu")"), HasSubstr("key activation_function is 'gelu'"));
  EXPECT_THAT(refused(R"("_remove_final_layer_norm":true)"), HasSubstr("key _remove_final_layer_norm"));
  EXPECT_THAT(refused(R"("enable_bias":false)"), HasSubstr("key enable_bias"));
  Translated(absl::StrCat(kOpt, R"(,"tie_word_embeddings":false})"), &model);
  EXPECT_FALSE(model.tied);
}

TEST(HfConfig, Phi3) {
  EXPECT_THAT(Translated(Config("phi3", R"("sliding_window":2047,"partial_rotary_factor":0.75,"rope_scaling":null)")),
              IsSupersetOf({Pair("general.architecture", "phi3"), Pair("rope.dimension_count", "12"),
                            Pair("attention.sliding_window", "2047")}));
  EXPECT_THAT(
      Translated(
          Config("phi3", R"("rope_parameters":{"rope_type":"default","rope_theta":1e4,"partial_rotary_factor":0.75})")),
      Contains(Pair("rope.dimension_count", "12")));
  EXPECT_THAT(Translated(Config("phi3")), Not(Contains(Key("attention.sliding_window"))));
  for (const char* type : {"su", "yarn", "longrope"}) {
    EXPECT_THAT(RefusedConfig(Config("phi3", absl::StrCat(R"("rope_scaling":{"factor":2,"type":")", type, R"("})"))),
                HasSubstr("key rope_scaling"));
  }
}

constexpr char kStarcoder2[] = R"({"model_type":"starcoder2","num_hidden_layers":2,"hidden_size":96,
                                   "intermediate_size":384)";

TEST(HfConfig, Starcoder2) {
  HfModel model;
  EXPECT_THAT(Translated(absl::StrCat(kStarcoder2, "}"), &model),
              UnorderedElementsAre(Pair("general.architecture", "starcoder2"), Pair("block_count", "2"),
                                   Pair("embedding_length", "96"), Pair("feed_forward_length", "384"),
                                   Pair("context_length", "4096"), Pair("attention.head_count", "24"),
                                   Pair("attention.head_count_kv", "2"), Pair("attention.key_length", "4"),
                                   Pair("attention.value_length", "4"), Pair("rope.freq_base", "10000"),
                                   Pair("attention.layer_norm_epsilon", "1e-05")));
  EXPECT_TRUE(model.tied);
  EXPECT_THAT(Translated(absl::StrCat(kStarcoder2, R"(,"sliding_window":64,"rope_theta":100000,"norm_epsilon":1e-6,
                                                      "use_bias":true,"hidden_act":"gelu_pytorch_tanh"})")),
              IsSupersetOf({Pair("attention.sliding_window", "64"), Pair("rope.freq_base", "100000"),
                            Pair("attention.layer_norm_epsilon", "1e-06")}));
  EXPECT_THAT(Translated(absl::StrCat(kStarcoder2, R"(,"sliding_window":null})")),
              Not(Contains(Key("attention.sliding_window"))));
  EXPECT_THAT(RefusedConfig(absl::StrCat(kStarcoder2, R"(,"use_bias":false})")),
              HasSubstr("key use_bias must be true"));
  EXPECT_THAT(RefusedConfig(absl::StrCat(kStarcoder2, R"(,"hidden_act":"gelu"})")),
              HasSubstr("key hidden_act is 'gelu'"));
}

TEST(HfConfig, StretchedPositions) {
  const auto scaled = [](const std::string& scaling) {
    return Translated(Config("llama", absl::StrCat(R"("rope_scaling":)", scaling)));
  };
  EXPECT_THAT(scaled(R"({"type":"linear","factor":2})"),
              IsSupersetOf({Pair("rope.scaling.type", "linear"), Pair("rope.scaling.factor", "2")}));
  EXPECT_THAT(scaled(R"({"rope_type":"dynamic","factor":2.5})"),
              IsSupersetOf({Pair("rope.scaling.type", "dynamic"), Pair("rope.scaling.factor", "2.5")}));
  EXPECT_THAT(scaled(R"({"rope_type":"default"})"), Not(Contains(Key("rope.scaling.type"))));
  EXPECT_THAT(scaled(R"({"rope_type":"llama3","factor":8,"low_freq_factor":1.5,"high_freq_factor":4,
                         "original_max_position_embeddings":128})"),
              IsSupersetOf({Pair("rope.scaling.type", "llama3"), Pair("rope.scaling.factor", "8"),
                            Pair("rope.scaling.low_freq_factor", "1.5"), Pair("rope.scaling.high_freq_factor", "4"),
                            Pair("rope.scaling.original_context_length", "128")}));
  EXPECT_THAT(
      scaled(R"({"type":"yarn","factor":4,"original_max_position_embeddings":128,"beta_fast":30,"beta_slow":2,
                         "attention_factor":1.25,"mscale":0.5,"mscale_all_dim":0.75})"),
      IsSupersetOf({Pair("rope.scaling.type", "yarn"), Pair("rope.scaling.factor", "4"),
                    Pair("rope.scaling.original_context_length", "128"), Pair("rope.scaling.yarn_beta_fast", "30"),
                    Pair("rope.scaling.yarn_beta_slow", "2"), Pair("rope.scaling.yarn_attention_factor", "1.25"),
                    Pair("rope.scaling.yarn_mscale", "0.5"), Pair("rope.scaling.yarn_mscale_all_dim", "0.75")}));
  EXPECT_THAT(scaled(R"({"type":"yarn","factor":4})"), Not(Contains(Key("rope.scaling.original_context_length"))));
}

TEST(HfConfig, PositionsThatAreNotStretchedLikeOurs) {
  const auto refused = [](const std::string& scaling) {
    return RefusedConfig(Config("llama", absl::StrCat(R"("rope_scaling":)", scaling)));
  };
  EXPECT_THAT(refused(R"({"type":"longrope","factor":2})"), HasSubstr("key rope_scaling has the type 'longrope'"));
  EXPECT_THAT(refused(R"({"type":"su"})"), HasSubstr("'su'"));
  EXPECT_THAT(refused(R"({"type":"default","mrope_section":[1,2]})"), HasSubstr("rope_scaling has mrope_section"));
  EXPECT_THAT(refused(R"({"type":"yarn","factor":4,"truncate":false})"), HasSubstr("truncate"));
  EXPECT_THAT(refused(R"({"factor":2})"), HasSubstr("key rope_scaling.type is missing"));
  EXPECT_THAT(refused(R"({"type":"linear"})"), HasSubstr("key rope_scaling.factor is missing"));
  EXPECT_THAT(refused(R"({"type":"llama3","factor":2})"), HasSubstr("key rope_scaling."));
  EXPECT_THAT(refused(R"("linear")"), HasSubstr("key rope_scaling must be an object"));
}

TEST(HfConfig, PositionsAsTransformersFrom5OnHasThem) {
  EXPECT_THAT(Translated(Config("llama", R"("rope_parameters":{"rope_theta":500,"rope_type":"linear","factor":2})")),
              IsSupersetOf({Pair("rope.freq_base", "500"), Pair("rope.scaling.factor", "2")}));
  EXPECT_THAT(Translated(Config("gemma3_text", R"("rope_parameters":{
                  "full_attention":{"rope_theta":7e5,"rope_type":"linear","factor":8},
                  "sliding_attention":{"rope_theta":30000,"rope_type":"default"}})")),
              IsSupersetOf({Pair("rope.freq_base", "700000"), Pair("rope.freq_base_swa", "30000"),
                            Pair("rope.scaling.factor", "8")}));
  constexpr char kBoth[] =
      R"("rope_scaling":{"type":"linear","factor":4},"rope_parameters":{"rope_type":"%s","factor":%d})";
  EXPECT_THAT(RefusedConfig(Config("llama", absl::StrFormat(kBoth, "default", 1))),
              HasSubstr("rope_scaling says other than rope_parameters"));
  EXPECT_EQ(Translated(Config("llama", absl::StrFormat(kBoth, "linear", 4))),
            Translated(Config("llama", R"("rope_parameters":{"rope_type":"linear","factor":4})")));
  EXPECT_THAT(RefusedConfig(Config("llama", R"("rope_parameters":{"rope_type":"longrope"})")),
              HasSubstr("key rope_parameters has the type 'longrope'"));
  EXPECT_THAT(RefusedConfig(Config("gemma3_text", R"("rope_parameters":{"full_attention":{"rope_type":"default"},
                                    "sliding_attention":{"rope_type":"linear","factor":2}})")),
              HasSubstr("key rope_parameters"));
}

// What transformers 4.53's classes take.
TEST(HfConfig, ContextsAndEpsilonsAreTheClassesOwnWhereTheyAreNotSaid) {
  for (const auto& [type, context, epsilon] :
       std::vector<std::tuple<const char*, const char*, const char*>>{{"llama", "2048", "1e-06"},
                                                                      {"mistral", "131072", "1e-06"},
                                                                      {"qwen2", "32768", "1e-06"},
                                                                      {"qwen3", "32768", "1e-06"},
                                                                      {"phi3", "4096", "1e-05"},
                                                                      {"gemma2", "8192", "1e-06"}}) {
    const std::string config = Without(Config(type), R"("max_position_embeddings":512,)");
    EXPECT_THAT(Translated(Without(config, R"(,"rms_norm_eps":1e-05)")),
                IsSupersetOf({Pair("context_length", context), Pair("attention.layer_norm_rms_epsilon", epsilon)}))
        << type;
  }
}

std::string UnreadKeys(const std::string& json) {
  HfModel model;
  Translated(json, &model);
  return model.unread_keys;
}

TEST(HfConfig, KeysThatNothingReadsAreNamed) {
  const std::string more = R"("use_qk_norm":false,"rope_scaling":{"rope_type":"linear","factor":2,"stretch":3},
                              "residual_multiplier":0.22,"mlp_bias":true)";
  EXPECT_EQ(UnreadKeys(Config("llama", more)),
            "config.json: nothing reads the keys 'use_qk_norm', 'rope_scaling.stretch', 'residual_multiplier': what "
            "they say has no effect");
  // What another class reads.
  EXPECT_THAT(UnreadKeys(Config("mistral", R"("attention_bias":true)")), HasSubstr("'attention_bias'"));
  EXPECT_THAT(UnreadKeys(Config("llama", R"("sliding_window":4096)")), HasSubstr("'sliding_window'"));
  EXPECT_EQ(UnreadKeys(Config("llama", R"("sliding_window":null)")), "");
  // Up to the file, so not all of them.
  std::vector<std::string> many;
  for (int i = 0; i < 50; ++i) many.push_back(absl::StrCat("\"key_", i, "\":1"));
  EXPECT_THAT(UnreadKeys(Config("llama", absl::StrJoin(many, ","))),
              AllOf(HasSubstr("'key_19' and 30 others"), Not(HasSubstr("key_20"))));
}

TEST(HfConfig, OfFilesAsTheyAreNothingIsUnread) {
  const std::string all =
      R"("architectures":["X"],"torch_dtype":"bfloat16","transformers_version":"4.53.0","use_cache":true,
      "vocab_size":8,"bos_token_id":1,"eos_token_id":[2,3],"pad_token_id":null,"initializer_range":0.02,
      "attention_dropout":0.0,"tie_word_embeddings":false)";
  EXPECT_EQ(
      UnreadKeys(Config("llama", all + R"(,"attention_bias":false,"hidden_act":"silu","mlp_bias":false,"head_dim":16,
      "pretraining_tp":1,"rope_theta":500000.0,"rope_scaling":{"factor":8.0,"low_freq_factor":1.0,"type":"llama3",
      "high_freq_factor":4.0,"original_max_position_embeddings":256,"rope_type":"llama3"})")),
      "");
  EXPECT_EQ(UnreadKeys(Config("mistral", all + R"(,"hidden_act":"silu","head_dim":16,"rope_theta":1e6,
      "sliding_window":null)")),
            "");
  for (const char* type : {"qwen2", "qwen3"}) {
    EXPECT_EQ(UnreadKeys(Config(type, all + R"(,"hidden_act":"silu","rope_theta":1e6,"rope_scaling":null,
        "max_window_layers":28,"sliding_window":4096,"use_sliding_window":false,
        "layer_types":["full_attention","full_attention"])")),
              "");
  }
  EXPECT_EQ(UnreadKeys(Config("qwen3", all + R"(,"attention_bias":false)")), "");
  EXPECT_EQ(UnreadKeys(Config("gemma3_text", all + R"(,"hidden_activation":"gelu_pytorch_tanh","rope_theta":1e6,
      "hidden_act":"gelu_pytorch_tanh","_sliding_window_pattern":6,"sliding_window_pattern":6,"attn_logit_softcapping":null,
      "final_logit_softcapping":null,"cache_implementation":"hybrid","head_dim":16,"query_pre_attn_scalar":16,
      "sliding_window":512,"layer_types":["sliding_attention","full_attention"],"rope_local_base_freq":10000.0,
      "rope_scaling":null)")),
            "");
  EXPECT_EQ(UnreadKeys(Config("phi3", all + R"(,"hidden_act":"silu","embd_pdrop":0.0,"resid_pdrop":0.0,
      "original_max_position_embeddings":512,"rope_theta":1e4,"rope_scaling":null,"sliding_window":128,
      "partial_rotary_factor":1.0)")),
            "");
}

TEST(HfConfig, MissingKeysAreNamed) {
  for (const char* part : {R"("hidden_size":64,)", R"("intermediate_size":96,)", R"("num_hidden_layers":2,)",
                           R"("num_attention_heads":4,)", R"("model_type":"llama",)"}) {
    const std::string key = std::string(part).substr(1, std::string(part).find('"', 1) - 1);
    EXPECT_THAT(RefusedConfig(Without(Config("llama"), part)), HasSubstr("key " + key + " is missing"));
  }
  EXPECT_THAT(RefusedConfig(Without(Config("qwen2"), R"("num_key_value_heads":2,)")),
              HasSubstr("key num_key_value_heads"));
  EXPECT_THAT(RefusedConfig(R"({"model_type":"gemma3"})"), HasSubstr("key text_config is missing"));
  EXPECT_THAT(RefusedConfig(R"({"model_type":"gemma3","text_config":{}})"),
              HasSubstr("key text_config.num_hidden_layers is missing"));
}

TEST(HfConfig, KeysOfAnotherTypeOrValueAreNamed) {
  const auto refused = [](const std::string& from, const std::string& to) {
    return RefusedConfig(absl::StrReplaceAll(Config("llama", R"("hidden_act":"silu")"), {{from, to}}));
  };
  EXPECT_THAT(refused(":64", ":-64"), HasSubstr("key hidden_size must be a whole number"));
  EXPECT_THAT(refused(":64", ":64.5"), HasSubstr("key hidden_size"));
  EXPECT_THAT(refused(":64", ":\"64\""), HasSubstr("key hidden_size"));
  EXPECT_THAT(refused(":64", ":18446744073709551615"), HasSubstr("key hidden_size"));
  EXPECT_THAT(refused("1e-05", "\"small\""), HasSubstr("key rms_norm_eps must be a number"));
  EXPECT_THAT(refused("silu", "gelu"), HasSubstr("key hidden_act is 'gelu'; this family has 'silu'"));
  EXPECT_THAT(refused("\"silu\"", "3"), HasSubstr("key hidden_act must be a text"));
  EXPECT_THAT(refused("\"silu\"", "\"silu\",\"tie_word_embeddings\":1"), HasSubstr("key tie_word_embeddings"));
  EXPECT_THAT(refused("\"silu\"", "\"silu\",\"quantization_config\":{}"), HasSubstr("key quantization_config"));
  EXPECT_THAT(refused("\"llama\"", "\"qwen2_vl\""),
              HasSubstr("key model_type: 'qwen2_vl' is not supported; llama, mistral"));
  EXPECT_THAT(refused("\"llama\"", "7"), HasSubstr("key model_type must be a text"));
  EXPECT_THAT(RefusedConfig("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(RefusedConfig(Config("gemma3_text", R"("layer_types":["sliding_attention"])")),
              HasSubstr("key layer_types has 1 entries for 2 layers"));
  EXPECT_THAT(RefusedConfig(Config("gemma3_text", R"("layer_types":["chunked_attention",1])")),
              HasSubstr("key layer_types has 'chunked_attention'"));
  EXPECT_THAT(RefusedConfig(Config("gemma2", R"("query_pre_attn_scalar":0)")), HasSubstr("key query_pre_attn_scalar"));
  EXPECT_THAT(RefusedConfig(Config("llama", R"("partial_rotary_factor":1.5)")), HasSubstr("key partial_rotary_factor"));
  EXPECT_THAT(RefusedConfig(Config("phi3", R"("rope_parameters":{"partial_rotary_factor":-1})")),
              HasSubstr("partial_rotary_factor must be from 0 to 1"));
}

}  // namespace
}  // namespace runahead
