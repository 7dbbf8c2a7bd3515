#include <utility>

#include "absl/strings/str_cat.h"
#include "server/gateway/openai/choice_writer.h"
#include "server/gateway/openai/json_text.h"
#include "server/gateway/openai/logprobs_json.h"

namespace runahead {
namespace {

std::string EchoOf(const OpenAiCalls& calls, int choice) {
  return calls.echo.empty() ? "" : calls.echo[static_cast<size_t>(choice)];
}

// {"index","text","logprobs","finish_reason"}.
class CompletionChoice : public ChoiceWriter {
 public:
  CompletionChoice(const OpenAiCalls& calls, int choice)
      : stream_(calls.stream),
        with_logprobs_(calls.logprobs),
        choice_(choice),
        text_(EchoOf(calls, choice)),
        logprobs_(calls.top_logprobs, CountCharacters(text_)) {}

  std::vector<std::string> Begin() override { return Pending(); }

  std::vector<std::string> Add(const v1::Tokens& tokens) override {
    text_ += tokens.text();
    if (with_logprobs_) logprobs_.Add(tokens);
    return Pending();
  }

  std::vector<std::string> End(const v1::Finished& finished) override {
    text_ += finished.text();
    reason_ = FinishReasonJson(finished.reason());
    if (!stream_) return {};
    return {TakeObject()};
  }

  std::string Whole() override { return TakeObject(); }

 private:
  std::vector<std::string> Pending() {
    if (!stream_ || (text_.empty() && logprobs_.empty())) return {};
    return {TakeObject()};
  }

  std::string TakeObject() {
    return absl::StrCat("{\"index\":", choice_, ",\"text\":", JsonString(std::exchange(text_, "")),
                        ",\"logprobs\":", logprobs_.Take(), ",\"finish_reason\":", reason_, "}");
  }

  const bool stream_;
  const bool with_logprobs_;
  const int choice_;
  std::string text_;  // that was not returned yet
  CompletionLogprobs logprobs_;
  absl::string_view reason_ = "null";
};

}  // namespace

std::unique_ptr<ChoiceWriter> MakeCompletionChoice(const OpenAiCalls& calls, int choice) {
  return std::make_unique<CompletionChoice>(calls, choice);
}

}  // namespace runahead
