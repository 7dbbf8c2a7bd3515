// Folders of the smallest llama.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/folder_builder.h"
#include "worker/format/model_folder.h"

namespace runahead {

// Its config.json but for the last brace.
inline constexpr char kTinyConfig[] =
    R"({"model_type":"llama","num_hidden_layers":1,"hidden_size":4,"intermediate_size":2,
    "num_attention_heads":2,"num_key_value_heads":1,"max_position_embeddings":16,"rms_norm_eps":1e-5,
    "tie_word_embeddings":true)";

inline std::string FolderPath(const std::string& name) {
  return absl::StrCat(testing::TempDir(), name);
}

// A tensor of zeros.
inline void AddF32(FolderBuilder& folder, const std::string& name, const std::vector<int64_t>& shape) {
  size_t bytes = sizeof(float);
  for (const int64_t dim : shape) bytes *= dim;
  folder.Tensor(name, "F32", shape, std::string(bytes, '\0'));
}

// All of it but its tensors' files. `embedding`: the name of the tensor that is the embedding.
inline FolderBuilder TinyFolder(const std::string& name, const std::string& more_config = "",
                                const std::string& embedding = "model.embed_tokens.weight") {
  FolderBuilder folder(FolderPath(name));
  folder.Text("config.json", absl::StrCat(kTinyConfig, more_config, "}"));
  AddF32(folder, embedding, {8, 4});
  AddF32(folder, "model.norm.weight", {4});
  const std::string layer = "model.layers.0.";
  AddF32(folder, layer + "self_attn.q_proj.weight", {4, 4});
  AddF32(folder, layer + "self_attn.k_proj.weight", {2, 4});
  AddF32(folder, layer + "self_attn.v_proj.weight", {2, 4});
  AddF32(folder, layer + "self_attn.o_proj.weight", {4, 4});
  AddF32(folder, layer + "mlp.gate_proj.weight", {2, 4});
  AddF32(folder, layer + "mlp.up_proj.weight", {2, 4});
  AddF32(folder, layer + "mlp.down_proj.weight", {4, 2});
  AddF32(folder, layer + "input_layernorm.weight", {4});
  AddF32(folder, layer + "post_attention_layernorm.weight", {4});
  return folder;
}

// Why a folder is refused: with its path, and short.
inline std::string FolderRefusal(const FolderBuilder& folder) {
  const auto file = OpenFolder(folder.path());
  EXPECT_FALSE(file.ok());
  EXPECT_THAT(std::string(file.status().message()),
              testing::AllOf(testing::HasSubstr(folder.path()), testing::SizeIs(testing::Lt(600u))));
  return std::string(file.status().message());
}

}  // namespace runahead
