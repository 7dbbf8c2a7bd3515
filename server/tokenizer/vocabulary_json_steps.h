// The steps around the model in a tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tokenizer/json_view.h"
#include "server/tokenizer/vocabulary.h"

namespace runahead {

// Each takes the value of the member of that name and fills what the vocabulary has of it. INVALID_ARGUMENT names the
// place of what is wrong or not supported.
absl::Status ReadJsonNormalizer(const JsonView& normalizer, Vocabulary& vocabulary);

// `byte_level`: words are written in the byte alphabet behind it.
absl::Status ReadJsonPreTokenizer(const JsonView& pre_tokenizer, Vocabulary& vocabulary, bool& byte_level);

// `byte_fallback`: tokens <0xNN> become bytes.
absl::Status ReadJsonDecoder(const JsonView& decoder, bool byte_level, Vocabulary& vocabulary, bool& byte_fallback);

// Where the file has no decoder: text is put together as the steps before, which the vocabulary has, took it apart, as
// llama.cpp does. (The tokenizers library puts blanks between tokens as they are written, which is no text.)
absl::Status DecodeAsEncoded(const JsonView& root, bool byte_level, Vocabulary& vocabulary, bool& byte_fallback);

// The token that every sequence begins with; none where there is none. What would be put behind a sequence is left out:
// a prompt goes on.
absl::StatusOr<std::optional<int64_t>> ReadJsonPostProcessor(const JsonView& post_processor);

}  // namespace runahead
