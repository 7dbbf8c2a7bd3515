// Reader of Hugging Face folders.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/format/model_file.h"

namespace runahead {

// Reads config.json, and where they are there generation_config.json, tokenizer.json, tokenizer_config.json,
// special_tokens_map.json, chat_template.jinja, additional_chat_templates/{default,tool_use}.jinja and
// chat_template.json; maps model.safetensors, or the files that model.safetensors.index.json names. Keys and names of
// tensors are GGUF's (ModelFile::Container); of the vocabulary:
//   tokenizer.huggingface.json    the text of tokenizer.json
//   tokenizer.huggingface.config  the text of tokenizer_config.json
//   tokenizer.huggingface.special_tokens_map  the text of special_tokens_map.json
//   tokenizer.chat_template, tokenizer.chat_template.tool_use, tokenizer.ggml.bos_token_id,
//   tokenizer.ggml.eos_token_ids (an array of integers)
// Every tensor that the family needs is there. Its shape is checked by who loads it. Errors name file and key or
// tensor.
absl::StatusOr<std::shared_ptr<const ModelFile>> OpenFolder(const std::string& path);

}  // namespace runahead
