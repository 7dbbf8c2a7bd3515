// All that came back for one request, and how it is shown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runahead/v1/inference.pb.h"

namespace runahead {

struct GenerateResult {
  v1::Started started;
  std::string text;
  // Of all messages together: of the prompt, from `index` on, and of the answer.
  v1::PromptLogprobs prompt_logprobs = {};
  v1::Tokens tokens;  // ids and logprobs
  v1::Finished finished;
  std::string trace_id = {};           // where it was asked to be recorded
  std::optional<int32_t> answer = {};  // which one, from 0, where several were asked for
};

// Of which answer the message is: 0 where there is one.
int32_t AnswerOf(const v1::GenerateResponse& response);

// Takes in one message of the stream and returns the text that is new with it.
std::string Add(v1::GenerateResponse response, GenerateResult& answer);

// The object of `generate --json`, on one line without a newline; the keys are a contract.
std::string ResultJson(const GenerateResult& answer);

// For people: a line for each token that has logprobs, those of the prompt first: id, text and logprob of the token
// itself, then of the others. "" where there are none.
std::string LogprobsText(const GenerateResult& answer);

// One line for people: time to first token, speed, plan.
std::string SummaryLine(const GenerateResult& answer);

}  // namespace runahead
