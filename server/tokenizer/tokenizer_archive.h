// The folder by which others' programs do what our tokenizer and chat template do, as one zip.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/format/model_file.h"

namespace runahead {

// No archive has more bytes: SMG, a gateway that asks for it, takes no more. 262,144 tokens of Gemma 3 take 14 MB.
inline constexpr int64_t kMaxTokenizerArchive = int64_t{200} << 20;

// The zip of tokenizer.json, tokenizer_config.json and config.json, and what else a folder has of these. They are the
// model's own files where it is a folder or has a tokenizer.json in it; its chat template, wherever it lies there, is
// also chat_template.jinja. Of other GGUF files they are written from the vocabulary and the keys: then config.json has
// only what is known of it, and the template stands in tokenizer_config.json. A second template, for tools, is left
// out. The same for the same file. Takes some 0.1 s, 0.6 s and
// 100 MB for 262,144 tokens. FAILED_PRECONDITION says what of the vocabulary a tokenizer.json has no word for, or
// that all of it is too large; other errors are those of reading the vocabulary, or the folder's files.
absl::StatusOr<std::string> TokenizerArchive(const ModelFile& file);

}  // namespace runahead
