// The field's forms of log probabilities.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "runahead/v1/inference.pb.h"

namespace runahead {

// "logprobs" of a chat's choice: {"content":[{"token","logprob","bytes","top_logprobs"}],"refusal":null}.
class ChatLogprobs {
 public:
  // `top`: as many of the likeliest are written for each token, in falling order; what was chosen is among them only
  // where it is one of them.
  explicit ChatLogprobs(int top) : top_(top) {}

  void Add(const v1::Tokens& tokens);
  bool empty() const { return content_.empty(); }
  // Of what was added since the last call; "null" where that is nothing.
  std::string Take();

 private:
  int top_;
  std::string content_;
};

// "logprobs" of a completion's choice: {"tokens","token_logprobs","top_logprobs","text_offset"}. The likeliest
// `top` are written for each token, in falling order, and behind them what was chosen where it is none of them; of
// several with the same text the likeliest counts.
class CompletionLogprobs {
 public:
  // `offset`: characters that stand before the first token that is added.
  CompletionLogprobs(int top, int64_t offset) : top_(top), characters_(offset) {}

  void Add(const v1::Tokens& tokens);
  // Of a prompt, before all else. Nothing says what its first token had: that is null. `text` is the prompt's, where it
  // was one: a first token that it does not begin with is the model's own begin token, which takes no place in it, and
  // a blank that some models put before a text is none of it.
  void AddPrompt(const v1::PromptLogprobs& prompt, std::optional<absl::string_view> text);
  bool empty() const { return tokens_.empty(); }
  // As above. The offsets go on.
  std::string Take();

 private:
  void AddScored(const v1::TokenLogprobs& logprobs, absl::string_view bytes);
  void AddOffset(absl::string_view bytes);

  int top_;
  int64_t characters_;  // that began before the next token
  bool begun_ = false;  // a token of the prompt has taken its place in the text
  std::string tokens_;
  std::string logprobs_;
  std::string tops_;
  std::string offsets_;
};

// vLLM's "prompt_logprobs": [null,{"ID":{"logprob","rank","decoded_token"},..},..], of each token of the prompt but the
// first, which nothing comes before: the token itself first, then the likeliest `top` in falling order. The likeliest
// has rank 1. Of the token itself `rank` is null where it is none of the likeliest `top` (at least 1): nothing says how
// many are before it.
class PromptLogprobsList {
 public:
  explicit PromptLogprobsList(int top) : top_(top) {}

  void Add(const v1::PromptLogprobs& prompt);
  // Of all that was added.
  std::string Take();

 private:
  int top_;
  std::string tokens_;
};

// Code points of UTF-8.
int64_t CountCharacters(absl::string_view text);

// What the token stands for.
const std::string& BytesOf(const v1::TokenLogprob& token);

}  // namespace runahead
