#include "server/engine/engine_answer.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

namespace engine = vllm::grpc::engine;

// gRPC's clients refuse longer messages unless they were told otherwise.
constexpr size_t kMostMessageBytes = size_t{4} << 20;
// Of a token that is kept, of its messages where it has log probabilities, and of each alternative in them.
constexpr int64_t kIdBytes = 4;
constexpr int64_t kScoredBytes = 128;
constexpr int64_t kLogprobBytes = 16;

int64_t BytesOf(const v1::TokenLogprobs& scored) {
  return kScoredBytes + kLogprobBytes * scored.top_size();
}

// The likeliest `most`. The public service names the token itself first, wherever it stands among them.
void FillTop(const v1::TokenLogprobs& token, int most, engine::TopLogProbs& out) {
  std::vector<const v1::TokenLogprob*> tops;
  for (const v1::TokenLogprob& top : token.top()) tops.push_back(&top);
  std::stable_sort(tops.begin(), tops.end(), [](const auto* a, const auto* b) { return a->logprob() > b->logprob(); });
  tops.resize(std::min(tops.size(), static_cast<size_t>(most)));
  for (const v1::TokenLogprob* const top : tops) {
    out.add_values(top->logprob());
    out.add_token_ids(static_cast<uint32_t>(top->id()));
  }
}

void AddLogprobs(const v1::Tokens& tokens, int most, engine::OutputLogProbs& out) {
  for (const v1::TokenLogprobs& token : tokens.logprobs()) {
    if (token.top().empty()) continue;
    out.add_token_logprobs(token.top(0).logprob());
    out.add_token_ids(static_cast<uint32_t>(token.top(0).id()));
    FillTop(token, most, *out.add_top_logprobs());
  }
}

size_t AnswersOf(const v1::GenerateRequest& request) {
  return static_cast<size_t>(std::max(1, request.n()));
}

}  // namespace

EngineAnswer::EngineAnswer(bool stream, const v1::GenerateRequest& public_request)
    : stream_(stream),
      has_logprobs_(public_request.sampling().has_logprobs()),
      most_(std::max(0, public_request.sampling().logprobs())),
      prompt_most_(std::max(0, public_request.prompt_logprobs())) {
  // One more than the public service gives is refused by it, and has none here.
  constexpr size_t kMostAnswers = 64;
  answers_.resize(std::min(AnswersOf(public_request), kMostAnswers));
}

absl::StatusOr<std::optional<engine::GenerateResponse>> EngineAnswer::Add(const v1::GenerateResponse& event) {
  std::optional<engine::GenerateResponse> told;
  if (event.has_started()) {
    if (One* const one = Of(event.started().answer())) {
      one->prompt_tokens = static_cast<uint32_t>(event.started().prompt_tokens());
      one->cached_tokens = static_cast<uint32_t>(event.started().plan().known_tokens());
    }
  } else if (event.has_prompt_logprobs()) {
    Keep(event.prompt_logprobs());
  } else if (event.has_tokens()) {
    if (One* const one = Of(event.tokens().answer())) told = Tell(*one, event.tokens());
  } else if (event.has_finished()) {
    if (One* const one = Of(event.finished().answer())) told = Complete(*one, event.finished());
  }
  if (told && told->ByteSizeLong() > kMostMessageBytes) {
    return absl::OutOfRangeError(absl::StrCat("the answer has ", told->ByteSizeLong(), " bytes, more than the ",
                                              kMostMessageBytes, " that clients of gRPC take; ", WayToLess()));
  }
  if (stream_ || !told) return told;
  Of(event.finished().answer())->complete = std::move(told);
  return Next();
}

std::optional<engine::GenerateResponse> EngineAnswer::Next() {
  if (stream_ || next_ == answers_.size() || !answers_[next_].complete) return std::nullopt;
  return std::exchange(answers_[next_++].complete, std::nullopt);
}

absl::string_view EngineAnswer::WayToLess() const {
  if (prompt_bytes_ > bytes_ / 2) return "ask for fewer prompt_logprobs, or none";
  return stream_ ? "ask for fewer tokens" : "ask for a stream, or fewer logprobs";
}

EngineAnswer::One* EngineAnswer::Of(int32_t answer) {
  const bool known = answer >= 0 && static_cast<size_t>(answer) < answers_.size();
  return known ? &answers_[static_cast<size_t>(answer)] : nullptr;
}

void EngineAnswer::Keep(const v1::PromptLogprobs& scored) {
  int32_t index = scored.index();
  for (const v1::TokenLogprobs& token : scored.logprobs()) {
    if (token.top().empty()) continue;
    engine::InputTokenLogProb& logprob = *prompt_logprobs_.add_token_logprobs();
    if (index++ > 0) logprob.set_value(token.top(0).logprob());
    prompt_logprobs_.add_token_ids(static_cast<uint32_t>(token.top(0).id()));
    engine::TopLogProbs& tops = *prompt_logprobs_.add_top_logprobs();
    if (index > 1) FillTop(token, prompt_most_, tops);
    bytes_ += BytesOf(token);
    prompt_bytes_ += BytesOf(token);
  }
}

std::optional<engine::GenerateResponse> EngineAnswer::Tell(One& one, const v1::Tokens& tokens) {
  one.ids.insert(one.ids.end(), tokens.ids().begin(), tokens.ids().end());
  bytes_ += kIdBytes * tokens.ids_size();
  if (!stream_) {
    if (has_logprobs_) AddLogprobs(tokens, most_, one.logprobs);
    for (const v1::TokenLogprobs& token : tokens.logprobs()) bytes_ += BytesOf(token);
    return std::nullopt;
  }
  engine::GenerateResponse response;
  engine::GenerateStreamChunk& chunk = *response.mutable_chunk();
  chunk.mutable_token_ids()->Add(tokens.ids().begin(), tokens.ids().end());
  chunk.set_prompt_tokens(one.prompt_tokens);
  chunk.set_completion_tokens(static_cast<uint32_t>(one.ids.size()));
  chunk.set_cached_tokens(one.cached_tokens);
  if (has_logprobs_) AddLogprobs(tokens, most_, *chunk.mutable_output_logprobs());
  chunk.set_index(static_cast<uint32_t>(tokens.answer()));
  if (tokens.answer() == 0 && prompt_logprobs_.token_ids_size() > 0)
    GivePromptLogprobs(*chunk.mutable_input_logprobs());
  return response;
}

engine::GenerateResponse EngineAnswer::Complete(One& one, const v1::Finished& finished) {
  engine::GenerateResponse response;
  engine::GenerateComplete& complete = *response.mutable_complete();
  complete.mutable_output_ids()->Add(one.ids.begin(), one.ids.end());
  complete.set_finish_reason(finished.reason() == v1::FINISH_REASON_LENGTH ? "length" : "stop");
  complete.set_prompt_tokens(static_cast<uint32_t>(finished.usage().prompt_tokens()));
  complete.set_completion_tokens(static_cast<uint32_t>(finished.usage().completion_tokens()));
  complete.set_cached_tokens(static_cast<uint32_t>(finished.usage().cached_prompt_tokens()));
  if (one.logprobs.token_ids_size() > 0) *complete.mutable_output_logprobs() = std::move(one.logprobs);
  complete.set_index(static_cast<uint32_t>(finished.answer()));
  if (finished.answer() == 0 && prompt_logprobs_.token_ids_size() > 0) {
    GivePromptLogprobs(*complete.mutable_input_logprobs());
  }
  one = {};
  return response;
}

void EngineAnswer::GivePromptLogprobs(engine::InputLogProbs& out) {
  out = std::move(prompt_logprobs_);
  prompt_logprobs_.Clear();
}

}  // namespace runahead
