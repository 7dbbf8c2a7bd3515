#include "server/gateway/openai/answer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/gateway/openai/answer_json.h"
#include "server/gateway/openai/choice_writer.h"
#include "server/gateway/openai/json_text.h"
#include "server/gateway/openai/logprobs_json.h"

namespace runahead {
namespace {

const char* ObjectName(const OpenAiCalls& calls) {
  if (!calls.chat) return "text_completion";
  return calls.stream ? "chat.completion.chunk" : "chat.completion";
}

// What is the same of all choices, and of all events of a streamed answer.
class FramedAnswer : public OpenAiAnswer {
 public:
  FramedAnswer(const OpenAiCalls& calls, const std::string& id, int64_t created)
      : stream_(calls.stream),
        include_usage_(calls.stream && calls.include_usage),
        choices_per_prompt_(static_cast<size_t>(calls.choices_per_prompt)),
        head_(absl::StrCat("{\"id\":", JsonString(id), ",\"object\":\"", ObjectName(calls), "\",\"created\":", created,
                           ",\"model\":", JsonString(calls.model), ",\"system_fingerprint\":null,\"choices\":[")) {
    const int choices = static_cast<int>(calls.calls.size()) * calls.choices_per_prompt;
    for (int i = 0; i < choices; ++i) {
      choices_.push_back({calls.chat ? MakeChatChoice(calls, i) : MakeCompletionChoice(calls, i), {}, {}});
      choices_.back().scored = !(calls.echo && calls.logprobs) && !calls.prompt_logprobs.has_value();
    }
    if (calls.chat && calls.prompt_logprobs.has_value()) of_prompt_.emplace(*calls.prompt_logprobs);
  }

  std::vector<std::string> Add(int prompt, const v1::GenerateResponse& response) override {
    const size_t first = static_cast<size_t>(prompt) * choices_per_prompt_;
    RUNAHEAD_CHECK(prompt >= 0 && first < choices_.size());
    if (response.has_prompt_logprobs()) return AddPrompt(first, response.prompt_logprobs());
    const int32_t answer = AnswerOf(response);
    if (answer < 0 || static_cast<size_t>(answer) >= choices_per_prompt_) return {};
    Choice& its = choices_[first + static_cast<size_t>(answer)];
    switch (response.event_case()) {
      case v1::GenerateResponse::kStarted:
        its.started = response.started();
        return Events(its.writer->Begin());
      case v1::GenerateResponse::kTokens:
        return Events(its.writer->Add(response.tokens()));
      case v1::GenerateResponse::kFinished:
        its.finished = response.finished();
        its.ended = true;
        return Events(its.writer->End(response.finished()), ServiceJson(its.started, its.finished));
      case v1::GenerateResponse::kPromptLogprobs:
      case v1::GenerateResponse::EVENT_NOT_SET:  // of a router newer than us
        break;
    }
    return {};
  }

  bool IsComplete() const override {
    return std::all_of(choices_.begin(), choices_.end(), [](const Choice& its) { return its.ended && its.scored; });
  }

  std::vector<std::string> Finish() override {
    if (stream_ && !include_usage_) return {};
    const std::string usage = absl::StrCat("],\"usage\":", UsageJson(Sum()));
    if (stream_) return {absl::StrCat(head_, usage, "}")};
    std::string choices;
    std::string services;
    for (const Choice& choice : choices_) {
      AddToJson(choices, choice.writer->Whole());
      AddToJson(services, ServiceJson(choice.started, choice.finished));
    }
    if (choices_.size() > 1) services = absl::StrCat("[", services, "]");
    const std::string of_prompt =
        of_prompt_.has_value() ? absl::StrCat(",\"prompt_logprobs\":", of_prompt_->Take()) : "";
    return {absl::StrCat(head_, choices, usage, of_prompt, ",\"runahead\":", services, "}")};
  }

 private:
  struct Choice {
    std::unique_ptr<ChoiceWriter> writer;
    v1::Started started;
    v1::Finished finished;
    bool ended = false;
    bool scored = true;  // what is asked of its prompt's tokens has come
  };

  static int32_t AnswerOf(const v1::GenerateResponse& response) {
    if (response.has_started()) return response.started().answer();
    return response.has_tokens() ? response.tokens().answer() : response.finished().answer();
  }

  // Of a prompt, for all of its choices, which stand from `first` on.
  std::vector<std::string> AddPrompt(size_t first, const v1::PromptLogprobs& logprobs) {
    if (of_prompt_.has_value()) of_prompt_->Add(logprobs);
    std::vector<std::string> events;
    for (size_t i = first; i < first + choices_per_prompt_; ++i) {
      choices_[i].scored = true;
      for (std::string& event : Events(choices_[i].writer->AddPrompt(logprobs))) events.push_back(std::move(event));
    }
    return events;
  }

  // Of each choice object an event. `service` goes with the last one; empty: with none.
  std::vector<std::string> Events(std::vector<std::string> objects, const std::string& service = "") const {
    for (size_t i = 0; i < objects.size(); ++i) {
      const bool has_service = !service.empty() && i + 1 == objects.size();
      objects[i] = absl::StrCat(head_, objects[i], "]", include_usage_ ? ",\"usage\":null" : "",
                                has_service ? ",\"runahead\":" : "", has_service ? service : "", "}");
    }
    return objects;
  }

  // All choices of a prompt have read it once.
  UsageSum Sum() const {
    UsageSum sum;
    for (size_t i = 0; i < choices_.size(); ++i) {
      const v1::Usage& usage = choices_[i].finished.usage();
      sum.completion_tokens += usage.completion_tokens();
      if (i % choices_per_prompt_ != 0) continue;
      sum.prompt_tokens += usage.prompt_tokens();
      sum.cached_tokens += usage.cached_prompt_tokens();
    }
    return sum;
  }

  const bool stream_;
  const bool include_usage_;
  const size_t choices_per_prompt_;
  const std::string head_;  // up to where the choices stand
  std::vector<Choice> choices_;
  std::optional<PromptLogprobsList> of_prompt_;  // of a chat's one prompt; completions have one in each choice
};

}  // namespace

absl::string_view FinishReasonJson(v1::FinishReason reason) {
  // A reason of a router newer than us is neither; the field has no word for that.
  return reason == v1::FINISH_REASON_LENGTH ? "\"length\"" : "\"stop\"";
}

std::unique_ptr<OpenAiAnswer> MakeAnswer(const OpenAiCalls& calls, const std::string& id, int64_t created) {
  return std::make_unique<FramedAnswer>(calls, id, created);
}

}  // namespace runahead
