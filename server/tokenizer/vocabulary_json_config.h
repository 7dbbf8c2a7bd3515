// What a folder's tokenizer_config.json says of a vocabulary.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/tokenizer/json_view.h"
#include "server/tokenizer/special_tokens.h"

namespace runahead {

// An added token of either file: its `content` and how it is found. The id is not read.
absl::StatusOr<NamedToken> ReadJsonNamedToken(const JsonView& token);

// The name of a token, which is a text or has one as its `content`.
absl::StatusOr<std::string> ReadJsonTokenName(const JsonView& token);

// The tokens of added_tokens_decoder by their ids there; then bos_token and the like, with -1 for an id.
absl::StatusOr<std::vector<NamedToken>> ReadJsonConfigTokens(const JsonView& config);

// Classes of transformers that begin texts by their own settings, whatever tokenizer.json says. The others do as that
// says, whatever add_bos_token is; where no class is named, add_bos_token counts.
struct BeginClass {
  absl::string_view name, bos;  // `bos` where the configuration names none
  bool adds_bos;                // where it does not say so
};
// Null where it is none of these.
const BeginClass* FindBeginClass(absl::string_view name);

}  // namespace runahead
