// Bodies of the OpenAI door, and texts of answers in which calls of tools and thoughts are looked for.
#include <iterator>

#include "server/gateway/openai/answer.h"
#include "server/gateway/openai/calls.h"
#include "server/gateway/openai/error.h"
#include "server/gateway/openai/json_slice.h"
#include "server/gateway/openai/other_routes.h"
#include "server/gateway/openai/reasoning.h"
#include "server/gateway/openai/request_members.h"
#include "server/gateway/openai/tool_calls.h"
#include "server/rpc/status.h"
#include "tests/fuzz/fuzz.h"

namespace runahead {
namespace {

constexpr const char* kFormats[] = {"hermes", "llama3", "json", R"(json [CALLS]<[{"name": "NAME", "input": {}}]>)"};

const DoorFacts& DoorOf(size_t format) {
  static const auto* facts = new std::vector<DoorFacts>{{"tiny", {"alias"}, kFormats[0], "think"},
                                                        {"tiny", {"alias"}, kFormats[1], "think_open"},
                                                        {"tiny", {"alias"}, kFormats[2], "think"},
                                                        {"tiny", {"alias"}, kFormats[3], "think_open"}};
  return (*facts)[format];
}

// A refusal blames a member, and its body is JSON.
void CheckRefused(const absl::Status& status) {
  const std::optional<std::string> field = BlamedField(status);
  RUNAHEAD_CHECK(field.has_value() && absl::IsInvalidArgument(status));
  fuzz::CheckRefusal(status, *field + ": ");
  const OpenAiError error = ToOpenAiError(status);
  RUNAHEAD_CHECK(error.http_status == 400 && JsonSlice::Check(error.body).ok());
}

template <typename Message>
void CheckSendable(const Message& message) {
  Message again;  // what is no UTF-8 does not parse
  RUNAHEAD_CHECK(again.ParseFromString(message.SerializeAsString()));
}

void CheckEvents(const std::vector<std::string>& events) {
  for (const std::string& event : events) {
    const absl::StatusOr<JsonSlice> json = JsonSlice::Check(event);
    RUNAHEAD_CHECK(json.ok() && json->text().size() == event.size());
  }
}

// What comes of an answer is JSON, and all of it comes when it is not streamed.
void CheckAnswer(const OpenAiCalls& calls, absl::string_view text) {
  const std::unique_ptr<OpenAiAnswer> answer = MakeAnswer(calls, "id", 1);
  for (int i = 0; i < static_cast<int>(calls.calls.size()); ++i) {
    v1::GenerateResponse response;
    response.mutable_started();
    CheckEvents(answer->Add(i, response));
    v1::TokenLogprob& prompt = *response.mutable_prompt_logprobs()->add_logprobs()->add_top();
    prompt.set_bytes(std::string(text.substr(0, 5)));
    CheckEvents(answer->Add(i, response));
    response.mutable_tokens()->set_text(std::string(text));
    v1::TokenLogprob& top = *response.mutable_tokens()->add_logprobs()->add_top();
    top.set_bytes(std::string(text.substr(0, 8)));
    CheckEvents(answer->Add(i, response));
    response.mutable_finished();
    CheckEvents(answer->Add(i, response));
  }
  const std::vector<std::string> last = answer->Finish();
  RUNAHEAD_CHECK(last.size() == (calls.stream && !calls.include_usage ? 0u : 1u));
  CheckEvents(last);
}

void CheckCalls(const absl::StatusOr<OpenAiCalls>& calls, absl::string_view text) {
  if (!calls.ok()) return CheckRefused(calls.status());
  RUNAHEAD_CHECK(!calls->calls.empty() && calls->choices_per_prompt >= 1);
  RUNAHEAD_CHECK(calls->calls.size() * static_cast<size_t>(calls->choices_per_prompt) <= kMaxAnswers);
  for (const v1::GenerateRequest& call : calls->calls) {
    CheckSendable(call);
    RUNAHEAD_CHECK(call.sampling().has_temperature() && call.stop().has_max_tokens() != call.stop().fill_context());
  }
  CheckAnswer(*calls, text);
}

// What is told apart of a text that comes in pieces of so many bytes, with borders between.
std::string ToldApart(absl::string_view text, size_t piece, const DoorFacts& facts) {
  ReasoningParser thinking(facts.reasoning_format == "think_open");
  static const auto* names = new ToolNames(new absl::flat_hash_set<std::string>{"f", "g"});
  ToolCallParser calling(*ToolFormatOf(facts.tool_format), *names);
  std::string thought, said, content;
  std::vector<ToolCallPart> calls;
  for (size_t at = 0; at < text.size(); at += piece) thinking.Feed(text.substr(at, piece), thought, said);
  thinking.Finish(thought, said);
  for (size_t at = 0; at < said.size(); at += piece)
    calling.Feed(absl::string_view(said).substr(at, piece), content, calls);
  calling.Finish(content);
  RUNAHEAD_CHECK(thought.size() + said.size() <= text.size() && content.size() <= said.size());
  for (const ToolCallPart& call : calls) {
    RUNAHEAD_CHECK(call.begins && !call.name.empty() && call.arguments.substr(0, 1) == "{");
    content += "%" + call.name + "%" + call.arguments;
  }
  return thought + "%" + content;
}

}  // namespace

void Fuzz(std::string_view input) {
  std::vector<absl::string_view> pieces;
  for (const std::string_view piece : fuzz::Pieces(input, 2)) pieces.emplace_back(piece.data(), piece.size());
  const absl::string_view body = pieces[0];
  const absl::string_view text = pieces[1];
  for (size_t format = 0; format < std::size(kFormats); ++format) {
    const DoorFacts& facts = DoorOf(format);
    CheckCalls(ReadChatRequest(body, facts), text);
    RUNAHEAD_CHECK(ToldApart(text, 1, facts) == ToldApart(text, 5, facts));
  }
  CheckCalls(ReadCompletionRequest(body, DoorOf(0)), text);
  const absl::StatusOr<v1::TokenizeRequest> tokenize = ReadTokenizeRequest(body, DoorOf(0));
  tokenize.ok() ? CheckSendable(*tokenize) : CheckRefused(tokenize.status());
  const absl::StatusOr<v1::DetokenizeRequest> detokenize = ReadDetokenizeRequest(body, DoorOf(0));
  detokenize.ok() ? CheckSendable(*detokenize) : CheckRefused(detokenize.status());
}

}  // namespace runahead
