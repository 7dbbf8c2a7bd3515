// The events of the public service that tests of answers are made of.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/gateway/openai/answer.h"

namespace runahead::testing {

inline OpenAiCalls CallsOf(bool chat, bool stream, int choices = 1, int prompts = 1) {
  OpenAiCalls calls;
  calls.chat = chat;
  calls.stream = stream;
  calls.model = "tiny";
  calls.choices_per_prompt = choices;
  calls.calls.resize(static_cast<size_t>(prompts));
  return calls;
}

inline OpenAiCalls EchoOf(const std::string& prompt, bool stream) {
  OpenAiCalls calls = CallsOf(false, stream);
  calls.calls[0].set_prompt(prompt);
  calls.echo = true;
  return calls;
}

inline v1::GenerateResponse OfAnswer(int answer, v1::GenerateResponse response) {
  if (response.has_started()) response.mutable_started()->set_answer(answer);
  if (response.has_tokens()) response.mutable_tokens()->set_answer(answer);
  if (response.has_finished()) response.mutable_finished()->set_answer(answer);
  return response;
}

inline v1::GenerateResponse StartedWith(uint64_t seed) {
  v1::GenerateResponse response;
  v1::Started& started = *response.mutable_started();
  started.set_request_id("r-1");
  started.set_seed(seed);
  started.mutable_plan()->set_schedule("kvr");
  started.mutable_plan()->add_workers("p0");
  started.mutable_plan()->add_workers("p1");
  started.mutable_plan()->add_parts(3);
  started.mutable_plan()->add_parts(4);
  started.mutable_plan()->set_decode_worker("d0");
  return response;
}

inline v1::GenerateResponse TextOf(const std::string& text) {
  v1::GenerateResponse response;
  response.mutable_tokens()->add_ids(5);
  response.mutable_tokens()->set_text(text);
  return response;
}

inline v1::GenerateResponse FinishedWith(const std::string& text, v1::FinishReason reason, int prompt, int completion,
                                         int cached) {
  v1::GenerateResponse response;
  v1::Finished& finished = *response.mutable_finished();
  finished.set_text(text);
  finished.set_reason(reason);
  finished.mutable_usage()->set_prompt_tokens(prompt);
  finished.mutable_usage()->set_completion_tokens(completion);
  finished.mutable_usage()->set_cached_prompt_tokens(cached);
  finished.mutable_timing()->set_ttft_s(0.5);
  finished.mutable_timing()->set_tpot_s(0.25);
  (*finished.mutable_timing()->mutable_stages())["prefill"] = 0.375;
  (*finished.mutable_timing()->mutable_stages())["queue"] = 0.125;
  return response;
}

inline void AddLogprobs(v1::GenerateResponse& response, const std::vector<std::pair<std::string, float>>& tops) {
  v1::TokenLogprobs& logprobs = *response.mutable_tokens()->add_logprobs();
  for (const auto& [text, logprob] : tops) {
    v1::TokenLogprob& top = *logprobs.add_top();
    top.set_text(text);
    top.set_logprob(logprob);
  }
}

// All events of one choice's responses, then of the end, each parsed: Json is nlohmann's, which is slow to compile.
template <typename Json>
std::vector<Json> EventsOf(const OpenAiCalls& calls, const std::vector<v1::GenerateResponse>& responses) {
  const std::unique_ptr<OpenAiAnswer> answer = MakeAnswer(calls, "id-1", 1700000000);
  std::vector<Json> events;
  for (const v1::GenerateResponse& response : responses) {
    for (const std::string& event : answer->Add(0, response)) events.push_back(Json::parse(event));
  }
  for (const std::string& event : answer->Finish()) events.push_back(Json::parse(event));
  return events;
}

inline constexpr char kService[] = R"({"request_id":"r-1","seed":7,"ttft_s":0.5,"tpot_s":0.25,
    "stages":{"queue":0.125,"prefill":0.375},"failovers":0,
    "plan":{"schedule":"kvr","workers":["p0","p1"],"parts":[3,4],"decode_worker":"d0","known_tokens":0}})";

inline constexpr char kUsage[] = R"({"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,
    "prompt_tokens_details":{"cached_tokens":2}})";

}  // namespace runahead::testing
