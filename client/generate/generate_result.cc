#include "client/generate/generate_result.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace runahead {
namespace {

using Json = nlohmann::ordered_json;

using Logprobs = google::protobuf::RepeatedPtrField<v1::TokenLogprobs>;

Json LogprobsJson(const Logprobs& all) {
  Json steps = Json::array();
  for (const v1::TokenLogprobs& logprobs : all) {
    Json step = Json::array();
    for (const v1::TokenLogprob& top : logprobs.top()) {
      Json token = {{"id", top.id()}, {"logprob", top.logprob()}, {"text", top.text()}};
      if (!top.bytes().empty()) token["bytes"] = std::vector<uint8_t>(top.bytes().begin(), top.bytes().end());
      step.push_back(std::move(token));
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

Json TimingJson(const v1::Timing& timing) {
  Json stages = Json::object();
  // In the order in which a request passes them; the map has none.
  std::vector<std::string> names = {"queue", "tokenize", "plan", "reserve", "worker_queue", "prefill", "first_token"};
  for (const auto& stage : timing.stages()) names.push_back(stage.first);
  for (const std::string& name : names) {
    const auto found = timing.stages().find(name);
    if (found != timing.stages().end()) stages[name] = found->second;
  }
  return {{"ttft_s", timing.ttft_s()}, {"tpot_s", timing.tpot_s()}, {"stages", std::move(stages)}};
}

std::string FinishReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    default:
      return "unspecified";  // of a router newer than us
  }
}

// A line a token, which are counted from `first` on.
void AppendLines(const char* what, int first, const Logprobs& all, std::string& text) {
  for (int i = 0; i < all.size(); ++i) {
    absl::StrAppend(&text, what, " ", first + i, ":");
    for (const v1::TokenLogprob& top : all[i].top()) {
      absl::StrAppendFormat(&text, "  %d %s %.4f", top.id(), Json(top.text()).dump(), top.logprob());
    }
    absl::StrAppend(&text, "\n");
  }
}

}  // namespace

int32_t AnswerOf(const v1::GenerateResponse& response) {
  if (response.has_started()) return response.started().answer();
  if (response.has_tokens()) return response.tokens().answer();
  return response.has_finished() ? response.finished().answer() : 0;
}

std::string Add(v1::GenerateResponse response, GenerateResult& answer) {
  std::string text;
  if (response.has_started()) {
    answer.started = std::move(*response.mutable_started());
  } else if (response.has_prompt_logprobs()) {
    v1::PromptLogprobs& scores = *response.mutable_prompt_logprobs();
    if (scores.index() == 0) {  // of the first token nothing is said but its text
      scores.mutable_logprobs()->DeleteSubrange(0, std::min(1, scores.logprobs_size()));
      answer.prompt_logprobs.set_index(1);
    }
    answer.prompt_logprobs.mutable_logprobs()->MergeFrom(scores.logprobs());
  } else if (response.has_tokens()) {
    text = response.tokens().text();
    answer.tokens.MergeFrom(response.tokens());
  } else if (response.has_finished()) {
    text = response.finished().text();
    answer.finished = std::move(*response.mutable_finished());
    if (answer.finished.has_plan()) *answer.started.mutable_plan() = answer.finished.plan();
  }
  answer.text += text;
  return text;
}

std::string ResultJson(const GenerateResult& answer) {
  const v1::Plan& plan = answer.started.plan();
  Json json;
  json["request_id"] = answer.started.request_id();
  if (answer.answer) json["answer"] = *answer.answer;
  json["text"] = answer.text;
  json["token_ids"] = std::vector<int32_t>(answer.tokens.ids().begin(), answer.tokens.ids().end());
  json["logprobs"] = LogprobsJson(answer.tokens.logprobs());
  if (answer.prompt_logprobs.logprobs_size() > 0) {
    // One for each token of the prompt; nothing says what the first one had.
    json["prompt_logprobs"] = LogprobsJson(answer.prompt_logprobs.logprobs());
    json["prompt_logprobs"].insert(json["prompt_logprobs"].begin(), Json());
  }
  json["finish_reason"] = FinishReasonName(answer.finished.reason());
  json["seed"] = answer.started.seed();
  json["usage"] = {{"prompt_tokens", answer.finished.usage().prompt_tokens()},
                   {"completion_tokens", answer.finished.usage().completion_tokens()},
                   {"cached_prompt_tokens", answer.finished.usage().cached_prompt_tokens()}};
  json["timing"] = TimingJson(answer.finished.timing());
  json["plan"] = {{"schedule", plan.schedule()},
                  {"workers", std::vector<std::string>(plan.workers().begin(), plan.workers().end())},
                  {"parts", std::vector<int32_t>(plan.parts().begin(), plan.parts().end())}};
  if (plan.known_tokens() > 0) {
    json["plan"]["known_tokens"] = plan.known_tokens();
    json["plan"]["known_output_tokens"] = plan.known_output_tokens();
  }
  json["failovers"] = answer.finished.failovers();
  if (!answer.trace_id.empty()) json["trace_id"] = answer.trace_id;
  return json.dump();
}

std::string LogprobsText(const GenerateResult& answer) {
  std::string text;
  AppendLines("prompt token", answer.prompt_logprobs.index() + 1, answer.prompt_logprobs.logprobs(), text);
  AppendLines("token", 1, answer.tokens.logprobs(), text);
  return text;
}

std::string SummaryLine(const GenerateResult& answer) {
  const v1::Plan& plan = answer.started.plan();
  const v1::Finished& finished = answer.finished;
  const char* const what = finished.usage().completion_tokens() == 0 ? "computed in" : "first token after";
  std::string line = absl::StrFormat("%d prompt tokens, %s %.3f s", finished.usage().prompt_tokens(), what,
                                     finished.timing().ttft_s());
  if (finished.timing().tpot_s() > 0)
    absl::StrAppendFormat(&line, ", then %.1f tokens/s", 1 / finished.timing().tpot_s());
  if (plan.schedule().empty()) return line;  // nothing was to be computed
  absl::StrAppend(&line, "; ", plan.schedule(), plan.workers_size() > 0 ? ": " : "");
  if (plan.known_tokens() > 0) absl::StrAppend(&line, " behind ", plan.known_tokens(), " tokens");
  for (int i = 0; i < plan.workers_size(); ++i) {
    absl::StrAppend(&line, i == 0 ? "" : " -> ", plan.workers(i));
    if (i < plan.parts_size()) absl::StrAppend(&line, " (", plan.parts(i), ")");
  }
  if (!plan.decode_worker().empty()) absl::StrAppend(&line, ", decoded by ", plan.decode_worker());
  return line;
}

}  // namespace runahead
