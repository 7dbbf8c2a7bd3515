// What a client of the OpenAI door asks for, as calls of the public service.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runahead/v1/inference.pb.h"
#include "server/gateway/openai/error.h"
#include "server/gateway/openai/tool_names.h"

namespace runahead {

// What the door knows of the service before it reads a request.
struct DoorFacts {
  std::string model;                 // the served model's name; empty while the router has not said it
  std::vector<std::string> aliases;  // other names of it, in any case
  // How the model writes calls of tools, a name of ToolFormatOf. Empty, or none of these: tools are refused.
  std::string tool_format = {};
  // "think": an answer may begin with <think>..</think>. "think_open": it always does, and the tag is part of the
  // prompt. Empty: it does not.
  std::string reasoning_format = {};
  v1::SamplingParams recommended = {};  // what requests that do not say it get, beside the field's own defaults
};

// The calls that one request makes, and how their answers are to be written.
struct OpenAiCalls {
  // One for each prompt. The answers (the field's "choices") of calls[i] are those from i * choices_per_prompt on.
  std::vector<v1::GenerateRequest> calls;
  int choices_per_prompt = 1;  // n
  bool chat = false;           // /v1/chat/completions; else /v1/completions
  bool stream = false;         // server-sent events
  bool include_usage = false;  // a last event with usage
  bool logprobs = false;
  int top_logprobs = 0;                     // alternatives a token
  std::optional<int> prompt_logprobs = {};  // vLLM's list of the prompt's tokens, with so many alternatives a token
  std::string model;                        // as the answer names it
  bool echo = false;                        // the prompt stands before the answer, with logprobs its tokens, too
  std::string tool_format;                  // of calls in the answer; empty: none are looked for
  ToolNames tool_names = {};                // of the tools that it may call
  bool one_tool_call = false;               // what comes behind the first call is left out
  std::string reasoning_format;             // of what was thought; empty: it is not told apart
  SentMembers sent = {};                    // for errors of the service
  bool listed_prompts = false;              // they stand in an array, also one alone
  std::vector<std::string> ignored;         // members of the request that nobody knows, in order; to be counted
};

// The member that holds what the service calls prompt.
inline const char* PromptMember(bool chat) {
  return chat ? "messages" : "prompt";
}

// Read the body of a request: JSON of the OpenAI API with vLLM's usual additions. What is null is as if it were absent.
// Errors: INVALID_ARGUMENT, which names the member (FieldError), also where it is known but not supported. A model that
// is not served is passed on: the router refuses it, and says what it serves.
absl::StatusOr<OpenAiCalls> ReadChatRequest(absl::string_view body, const DoorFacts& facts);
absl::StatusOr<OpenAiCalls> ReadCompletionRequest(absl::string_view body, const DoorFacts& facts);

}  // namespace runahead
