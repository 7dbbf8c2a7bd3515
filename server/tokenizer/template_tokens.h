// The tokens that a chat template may name.
#pragma once

#include <array>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/tokenizer/chat_values.h"
#include "server/tokenizer/tokenizer.h"
#include "worker/format/model_file.h"

namespace runahead {

// transformers' names for them. The last is a list; the others are texts.
inline constexpr std::array<std::string_view, 8> kTokenNames = {
    "bos_token", "eos_token", "unk_token",  "sep_token",
    "pad_token", "cls_token", "mask_token", "additional_special_tokens"};

// Each that the model has, by its name; all text is the template's own. Of a folder: what its tokenizer_config.json
// says, `extra_special_tokens` among it, and its special_tokens_map.json where the former has no
// `added_tokens_decoder`, as transformers reads them; for bos_token and eos_token that are named in neither, what the
// tokenizer has. Of a GGUF file: what its keys say. INVALID_ARGUMENT names the file that is none of JSON.
absl::StatusOr<ChatVariables> TemplateTokens(const ModelFile& file, const Tokenizer& tokenizer);

}  // namespace runahead
