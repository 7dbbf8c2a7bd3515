// What a request may ask for. Messages begin with the field as inference.proto names it, then say what was given and
// what is allowed. Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runahead/v1/inference.pb.h"
#include "scheduler/placement/chain_plan.h"
#include "server/router/agreement.h"
#include "server/tokenizer/tokenizer.h"

namespace runahead {

// Output tokens where the request does not say, if the context leaves as many.
inline constexpr int32_t kDefaultMaxTokens = 1024;

// More than a million tokens of any language: for models whose context would allow for more text than a router can
// tokenize in a few seconds and some 300 MB (kTokenizingBytes).
inline constexpr size_t kMaxPromptBytes = size_t{8} << 20;
// What Tokenize takes, whatever the model's context. inference.proto says it.
inline constexpr size_t kMaxTokenizeBytes = size_t{4} << 20;
// Of what Detokenize gives: below the 4 MiB that a client of gRPC takes unless told otherwise. inference.proto says it.
inline constexpr size_t kMaxDetokenizedBytes = size_t{3} << 20;
// Of all JSON in a chat: parsed, it takes up to some forty times its size. inference.proto says it.
inline constexpr size_t kMaxChatJsonBytes = size_t{1} << 20;
inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr size_t kMaxUserBytes = 128;

// All else that can be said before the prompt is tokenized, of a request that CheckInputSize lets pass: quick then, and
// without a copy. INVALID_ARGUMENT, OUT_OF_RANGE (token ids) or NOT_FOUND (model).
absl::Status ValidateRequest(const v1::GenerateRequest& request, const ModelInfo& model, bool experiments);

// NOT_FOUND names the model that is served, unless `name` means that (IsNameOf) or is empty.
absl::Status ValidateModel(const std::string& name, const ModelInfo& model);

// What can be said before anything is done with the input, even copying it, which somebody who sends megabytes would
// make expensive. OUT_OF_RANGE, as ResolveMaxTokens, for what is too long for the context, where nothing of it is to be
// cut off: token ids, a chat of so many messages, or a text however well it is tokenized (much that is too long
// passes). INVALID_ARGUMENT for a text above kMaxPromptBytes, and JSON in a chat above kMaxChatJsonBytes. All else
// blames the prompt, whatever way it came.
absl::Status CheckInputSize(const v1::GenerateRequest& request, const Tokenizer& tokenizer, const ModelInfo& model);

// The same of what Tokenize takes: INVALID_ARGUMENT for a text, or a chat, above kMaxTokenizeBytes, and for its JSON;
// OUT_OF_RANGE for a chat of so many messages that the context cannot hold them.
absl::Status CheckInputSize(const v1::TokenizeRequest& request, const ModelInfo& model);

// All else that can be said of it before it is tokenized: as ValidateRequest.
absl::Status ValidateTokenize(const v1::TokenizeRequest& request, const ModelInfo& model);

// As ValidateRequest, of ids.
absl::Status ValidateDetokenize(const v1::DetokenizeRequest& request, const ModelInfo& model);

// The text that is tokenized: the prompt, or all that the chat says; 0 for token ids.
size_t TextBytes(const v1::GenerateRequest& request);
size_t TextBytes(const v1::TokenizeRequest& request);

// Of all JSON in a chat.
size_t ChatJsonBytes(const v1::ChatMessages& chat);

// Of what `field` became, however it came: tokenizers may have tokens that the model has no row for. OUT_OF_RANGE names
// one.
absl::Status CheckTokens(const char* field, absl::Span<const int32_t> ids, const ModelInfo& model);

// The tokens that the request may generate; 0 with prompt_logprobs only. INVALID_ARGUMENT for a prompt without tokens;
// OUT_OF_RANGE for one that, with its output, is longer than the context.
absl::StatusOr<int32_t> ResolveMaxTokens(const v1::GenerateRequest& request, int64_t prompt_tokens,
                                         const ModelInfo& model);

// What to plan. `schedule` is the router's, for requests that do not name one.
ChainRequest ResolveChain(const v1::GenerateRequest& request, int64_t prompt_tokens, Schedule schedule);

// CheckChainRequest, with the field named for programs too.
absl::Status CheckChain(const ChainRequest& chain, size_t line_size);

}  // namespace runahead
