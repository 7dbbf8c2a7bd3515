#include "server/gateway/openai/request_members.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr int kMaxChoices = 64;
constexpr int kMaxPromptAlternatives = 20;

}  // namespace

absl::StatusOr<ModelMember> ReadModel(JsonObject& body, const DoorFacts& facts) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::optional<std::string> given, body.String("model"));
  if (!given.has_value() || given->empty()) return ModelMember{"", facts.model};
  const bool alias = std::any_of(facts.aliases.begin(), facts.aliases.end(),
                                 [&given](const std::string& name) { return absl::EqualsIgnoreCase(name, *given); });
  return ModelMember{alias ? "" : *given, *given};
}

absl::Status ReadStreaming(JsonObject& body, OpenAiCalls& calls) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<bool> stream, body.Bool("stream"));
  calls.stream = stream.value_or(false);
  const std::optional<JsonSlice> given = body.Find("stream_options");
  if (!given.has_value()) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(JsonObject options, JsonObject::Read(*given, "stream_options"));
  if (!calls.stream) return InvalidField("stream_options", "it goes with \"stream\": true");
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<bool> include_usage, options.Bool("include_usage"));
  calls.include_usage = include_usage.value_or(false);
  options.Find("include_obfuscation");  // of lengths, against who listens: of no effect here
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<bool> continuous, options.Bool("continuous_usage_stats"));
  if (continuous.value_or(false)) {
    return InvalidField("stream_options.continuous_usage_stats", "it is not supported here; leave it out");
  }
  for (const std::string& key : options.Unread()) {
    if (calls.ignored.size() < kMaxIgnored) calls.ignored.push_back(options.PlaceOf(key));
  }
  return absl::OkStatus();
}

absl::Status ReadPromptLogprobs(JsonObject& body, OpenAiCalls& calls, v1::GenerateRequest& request) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<int64_t> most,
                            body.Integer("prompt_logprobs", "an integer from 0 to 20", 0, kMaxPromptAlternatives));
  if (!most.has_value()) return absl::OkStatus();
  if (calls.stream) {
    return InvalidField("prompt_logprobs",
                        "it does not go with \"stream\": true; a completion's \"echo\" with \"logprobs\" does");
  }
  calls.prompt_logprobs = static_cast<int>(*most);
  // At least one alternative: it tells whether a token is the likeliest.
  request.set_prompt_logprobs(std::max({request.prompt_logprobs(), static_cast<int32_t>(*most), 1}));
  return absl::OkStatus();
}

absl::Status ReadMaxTokens(JsonObject& body, std::optional<int64_t> otherwise, const OpenAiCalls& calls,
                           v1::StopConditions& stop) {
  const bool scores = (calls.echo && calls.logprobs) || calls.prompt_logprobs.has_value();
  const auto read = [&body, scores](absl::string_view key) -> absl::StatusOr<std::optional<int64_t>> {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<int64_t> most,
                              body.Integer(key, "an integer of at least 1", 0, std::numeric_limits<int32_t>::max()));
    if (most == 0 && !scores) {
      return InvalidField(
          key,
          "it is 0; an integer of at least 1 is allowed. With \"prompt_logprobs\", or in a completion with "
          "\"echo\": true and \"logprobs\", it may be 0, for the prompt's log probabilities alone");
    }
    return most;
  };
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<int64_t> older, read("max_tokens"));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<int64_t> newer, read("max_completion_tokens"));
  const std::optional<int64_t> most = newer.has_value() ? newer : older.has_value() ? older : otherwise;
  if (most.has_value()) {
    stop.set_max_tokens(static_cast<int32_t>(*most));
  } else {
    stop.set_fill_context(true);
  }
  return absl::OkStatus();
}

absl::Status AddCalls(JsonObject& body, std::vector<v1::GenerateRequest> prompts, OpenAiCalls& calls) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<int64_t> n,
                            body.Integer("n", absl::StrCat("an integer from 1 to ", kMaxChoices), 1, kMaxChoices));
  calls.choices_per_prompt = static_cast<int>(n.value_or(1));
  const char* field = calls.choices_per_prompt > 1 ? "n" : "prompt";
  const size_t count = prompts.size() * static_cast<size_t>(calls.choices_per_prompt);
  if (count > kMaxAnswers) {
    return InvalidField(field, absl::StrCat(count, " answers are more than ", kMaxAnswers, "; send several requests"));
  }
  size_t bytes = 0;
  for (const v1::GenerateRequest& prompt : prompts) bytes += prompt.ByteSizeLong();
  const size_t copies = calls.echo ? static_cast<size_t>(calls.choices_per_prompt) : 1;
  if (bytes * copies > kMaxCallBytes) {
    return InvalidField(
        copies > 1 ? field : "prompt",
        absl::StrCat("with all else of the request, once for each prompt", copies > 1 ? " and echo" : "",
                     ", it has more than ", kMaxCallBytes, " bytes; send several requests"));
  }
  calls.calls = std::move(prompts);
  if (calls.choices_per_prompt == 1) return absl::OkStatus();
  for (v1::GenerateRequest& call : calls.calls) call.set_n(calls.choices_per_prompt);
  return absl::OkStatus();
}

void AddIgnored(const JsonObject& body, OpenAiCalls& calls) {
  for (std::string& key : body.Unread()) {
    if (calls.ignored.size() < kMaxIgnored) calls.ignored.push_back(std::move(key));
  }
}

}  // namespace runahead
