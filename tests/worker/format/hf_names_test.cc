#include "worker/format/hf_names.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using Role = HfName::Role;

std::string Used(const HfNames& names, const std::string& stored) {
  const HfName name = names.Of(stored);
  EXPECT_EQ(name.role, Role::kUsed) << stored;
  return name.name;
}

TEST(HfNames, LlamaByAnyPrefix) {
  const HfNames names("llama", 12, false);
  for (const char* prefix : {"", "model.", "language_model.model.", "model.language_model."}) {
    EXPECT_EQ(Used(names, std::string(prefix) + "embed_tokens.weight"), "token_embd.weight");
    EXPECT_EQ(Used(names, std::string(prefix) + "layers.11.self_attn.k_proj.bias"), "blk.11.attn_k.bias");
  }
  EXPECT_EQ(Used(names, "model.norm.weight"), "output_norm.weight");
  EXPECT_EQ(Used(names, "lm_head.weight"), "output.weight");
  EXPECT_EQ(Used(names, "model.layers.0.self_attn.q_proj.weight"), "blk.0.attn_q.weight");
  EXPECT_EQ(Used(names, "model.layers.0.self_attn.o_proj.weight"), "blk.0.attn_output.weight");
  EXPECT_EQ(Used(names, "model.layers.0.mlp.down_proj.weight"), "blk.0.ffn_down.weight");
  EXPECT_EQ(Used(names, "model.layers.0.input_layernorm.weight"), "blk.0.attn_norm.weight");
  EXPECT_EQ(Used(names, "model.layers.0.post_attention_layernorm.weight"), "blk.0.ffn_norm.weight");
}

TEST(HfNames, OtherFamilies) {
  EXPECT_EQ(Used(HfNames("qwen3", 1, true), "model.layers.0.self_attn.q_norm.weight"), "blk.0.attn_q_norm.weight");
  const HfNames gemma("gemma3", 1, true);
  EXPECT_EQ(Used(gemma, "model.layers.0.post_attention_layernorm.weight"), "blk.0.post_attention_norm.weight");
  EXPECT_EQ(Used(gemma, "model.layers.0.pre_feedforward_layernorm.weight"), "blk.0.ffn_norm.weight");
  EXPECT_EQ(Used(gemma, "model.layers.0.post_feedforward_layernorm.weight"), "blk.0.post_ffw_norm.weight");
  EXPECT_EQ(Used(gemma, "model.layers.0.self_attn.k_norm.weight"), "blk.0.attn_k_norm.weight");
  const HfNames falcon("falcon", 1, true);
  EXPECT_EQ(Used(falcon, "transformer.h.0.self_attention.query_key_value.bias"), "blk.0.attn_qkv.bias");
  EXPECT_EQ(Used(falcon, "transformer.h.0.self_attention.dense.weight"), "blk.0.attn_output.weight");
  EXPECT_EQ(Used(falcon, "transformer.h.0.mlp.dense_h_to_4h.weight"), "blk.0.ffn_up.weight");
  EXPECT_EQ(Used(falcon, "transformer.h.0.input_layernorm.bias"), "blk.0.attn_norm.bias");
  EXPECT_EQ(Used(falcon, "transformer.h.0.ln_mlp.weight"), "blk.0.attn_norm.weight");
  EXPECT_EQ(Used(falcon, "transformer.h.0.ln_attn.weight"), "blk.0.attn_norm_2.weight");
  EXPECT_EQ(Used(falcon, "transformer.word_embeddings.weight"), "token_embd.weight");
  EXPECT_EQ(Used(falcon, "transformer.ln_f.bias"), "output_norm.bias");
  const HfNames opt("opt", 1, true);
  EXPECT_EQ(Used(opt, "model.decoder.embed_positions.weight"), "position_embd.weight");
  EXPECT_EQ(Used(opt, "decoder.layers.0.fc1.bias"), "blk.0.ffn_up.bias");
  EXPECT_EQ(Used(opt, "model.decoder.layers.0.final_layer_norm.weight"), "blk.0.ffn_norm.weight");
  EXPECT_EQ(Used(opt, "model.decoder.final_layer_norm.weight"), "output_norm.weight");
  EXPECT_EQ(Used(opt, "model.decoder.layers.0.self_attn.out_proj.weight"), "blk.0.attn_output.weight");
  const HfNames starcoder("starcoder2", 1, true);
  EXPECT_EQ(Used(starcoder, "model.layers.0.self_attn.o_proj.bias"), "blk.0.attn_output.bias");
  EXPECT_EQ(Used(starcoder, "model.layers.0.mlp.c_fc.weight"), "blk.0.ffn_up.weight");
  EXPECT_EQ(Used(starcoder, "model.layers.0.mlp.c_proj.bias"), "blk.0.ffn_down.bias");
  EXPECT_EQ(Used(starcoder, "model.layers.0.input_layernorm.bias"), "blk.0.attn_norm.bias");
  EXPECT_EQ(Used(starcoder, "model.layers.0.post_attention_layernorm.bias"), "blk.0.ffn_norm.bias");
  EXPECT_EQ(Used(starcoder, "model.norm.bias"), "output_norm.bias");
  EXPECT_EQ(Used(HfNames("phi3", 1, false), "model.layers.0.mlp.gate_up_proj.weight"), "blk.0.ffn_up.weight");
}

TEST(HfNames, WhatIsNotOfTheTextModelIsIgnored) {
  const HfNames names("gemma3", 1, true);
  for (const char* stored :
       {"vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight",
        "model.vision_tower.vision_model.post_layernorm.bias", "multi_modal_projector.mm_input_projection_weight"}) {
    EXPECT_EQ(names.Of(stored).role, Role::kIgnored) << stored;
  }
}

TEST(HfNames, BuffersThatTransformersComputesAnewAreIgnored) {
  for (const char* architecture : {"llama", "qwen2", "falcon", "opt", "phi3"}) {
    const HfNames names(architecture, 1, true);
    for (const char* stored :
         {"model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq", "rotary_emb.original_inv_freq",
          "model.layers.0.self_attn.rotary_emb.cos_cached", "model.layers.0.self_attn.rotary_emb.sin_cached",
          "model.layers.0.self_attn.masked_bias", "model.layers.0.self_attn.bias", "transformer.h.0.attn.bias",
          "h.0.attn.masked_bias", "model.decoder.version", "model.embed_positions.position_ids",
          "model.decoder.embed_positions._float_tensor", "model.layers.0.self_attn.causal_mask", "model.normalizer",
          "transformer.h.0.self_attention.rotary.inv_freq", "transformer.h.0.self_attention.maybe_rotary.inv_freq",
          "model.layers.0.self_attn.k_scale", "model.layers.0.self_attn.v_scale"}) {
      EXPECT_EQ(names.Of(stored).role, Role::kIgnored) << architecture << " " << stored;
    }
  }
  // Weights that end like them.
  EXPECT_EQ(Used(HfNames("falcon", 1, true), "transformer.h.0.self_attention.query_key_value.bias"),
            "blk.0.attn_qkv.bias");
  const HfNames llama("llama", 1, true);
  for (const char* stored : {"model.layers.0.mlp.bias", "model.my_inv_freq", "model.layers.0.other_attn.bias"}) {
    EXPECT_EQ(llama.Of(stored).role, Role::kUnknown) << stored;
  }
}

TEST(HfNames, AHeadIsOneWhateverTheConfigurationSays) {
  for (const char* stored : {"lm_head.weight", "language_model.lm_head.weight"}) {
    EXPECT_EQ(Used(HfNames("gemma3", 1, true), stored), "output.weight");
  }
}

TEST(HfNames, WeightsThatTheFamilyDoesNotHaveAreUnknown) {
  const HfNames names("gemma2", 2, true);
  for (const char* stored :
       {"model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.q_norm.weight",
        "model.layers.-1.mlp.up_proj.weight", "model.layers.01.mlp.up_proj.weight", "model.layers.1", "model.layers..x",
        "model.layers.99999999999999999999.mlp.up_proj.weight", "lm_head.bias", "score.weight", "",
        "model.layers.0.mlp.up_projector.weight", "model.layers.0.mlp.up_proj.weight.weight"}) {
    EXPECT_EQ(names.Of(stored).role, Role::kUnknown) << stored;
  }
}

TEST(HfNames, LayersBehindTheLastAreTold) {
  const HfNames names("gemma2", 2, true);
  EXPECT_EQ(names.Of("model.layers.2.mlp.up_proj.weight").role, Role::kBeyond);
  EXPECT_EQ(names.Of("model.layers.61.eh_proj.weight").role, Role::kBeyond);
  EXPECT_EQ(names.Of("model.layers.1.mlp.up_proj.weight").role, Role::kUsed);
}

TEST(HfNames, BiasesThatAreNotAnnouncedAreTold) {
  const HfNames llama("llama", 1, true, {"self_attn."});
  EXPECT_FALSE(llama.Of("model.layers.0.self_attn.q_proj.bias").unannounced);
  EXPECT_FALSE(llama.Of("model.layers.0.mlp.up_proj.weight").unannounced);
  EXPECT_TRUE(llama.Of("model.layers.0.mlp.up_proj.bias").unannounced);
  const HfNames qwen("qwen2", 1, true);  // whose class has the first always
  EXPECT_FALSE(qwen.Of("model.layers.0.self_attn.q_proj.bias").unannounced);
  EXPECT_TRUE(qwen.Of("model.layers.0.self_attn.o_proj.bias").unannounced);
}

TEST(HfNames, TheFirstThatIsMissingIsNamedAsInTheFolder) {
  const auto missing = [](const HfNames& names, const std::set<std::string>& lacking) {
    const auto first = names.FirstMissing([&](const std::string& name) { return lacking.count(name) == 0; });
    return first ? first->stored : "";
  };
  const HfNames llama("llama", 3, false);
  EXPECT_EQ(missing(llama, {}), "");
  EXPECT_EQ(missing(llama, {"blk.2.attn_q.weight"}), "model.layers.2.self_attn.q_proj.weight");
  EXPECT_EQ(missing(llama, {"output.weight", "blk.0.ffn_up.weight"}), "lm_head.weight");
  EXPECT_EQ(missing(llama, {"blk.0.attn_q.bias", "blk.3.attn_q.weight"}), "");
  EXPECT_EQ(missing(HfNames("llama", 3, true), {"output.weight"}), "");
  const HfNames announced("llama", 3, true, {"self_attn."});
  EXPECT_EQ(missing(announced, {"blk.1.attn_output.bias"}), "model.layers.1.self_attn.o_proj.bias");
  EXPECT_EQ(missing(announced, {"blk.1.ffn_up.bias"}), "");
  EXPECT_EQ(missing(HfNames("qwen2", 3, true), {"blk.1.attn_v.bias"}), "model.layers.1.self_attn.v_proj.bias");
  EXPECT_EQ(missing(HfNames("falcon", 1, true), {"blk.0.attn_norm_2.weight"}), "");
  EXPECT_EQ(missing(HfNames("falcon", 1, true), {"blk.0.attn_norm.bias"}), "transformer.h.0.input_layernorm.bias");
  EXPECT_EQ(missing(HfNames("opt", 1, true), {"blk.0.ffn_up.bias"}), "model.decoder.layers.0.fc1.bias");
  EXPECT_EQ(missing(HfNames("starcoder2", 1, true), {"blk.0.attn_k.bias"}), "model.layers.0.self_attn.k_proj.bias");
  EXPECT_EQ(missing(HfNames("starcoder2", 1, true), {"output_norm.bias"}), "model.norm.bias");
}

}  // namespace
}  // namespace runahead
