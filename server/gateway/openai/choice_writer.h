// One choice of an answer, in the form of its route.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runahead/v1/inference.pb.h"
#include "server/gateway/openai/calls.h"

namespace runahead {

// What it returns is for a streamed answer: the choice's part of an event each, as a JSON object. Of one that is not
// streamed it returns nothing and keeps all for Whole.
class ChoiceWriter {
 public:
  virtual ~ChoiceWriter() = default;

  // Once, first.
  virtual std::vector<std::string> Begin() = 0;
  // Of the prompt's tokens, all before the first of the answer's. Other answers to the same prompt get them, too. A
  // chat's whole answer has them once, beside its choices.
  virtual std::vector<std::string> AddPrompt(const v1::PromptLogprobs& logprobs) = 0;
  virtual std::vector<std::string> Add(const v1::Tokens& tokens) = 0;
  // Once, last. Streamed: at least one, of which the last has the reason.
  virtual std::vector<std::string> End(const v1::Finished& finished) = 0;

  // Behind End, of an answer that is not streamed: the choice as a JSON object.
  virtual std::string Whole() = 0;
};

// `calls` is needed for the call only.
std::unique_ptr<ChoiceWriter> MakeChatChoice(const OpenAiCalls& calls, int choice);
std::unique_ptr<ChoiceWriter> MakeCompletionChoice(const OpenAiCalls& calls, int choice);

// "stop" or "length", in quotes.
absl::string_view FinishReasonJson(v1::FinishReason reason);

}  // namespace runahead
