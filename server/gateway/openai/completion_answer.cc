#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/gateway/openai/choice_writer.h"
#include "server/gateway/openai/json_text.h"
#include "server/gateway/openai/logprobs_json.h"

namespace runahead {
namespace {

const v1::GenerateRequest& CallOf(const OpenAiCalls& calls, int choice) {
  return calls.calls[static_cast<size_t>(choice / calls.choices_per_prompt)];
}

// Bytes at the end of `text` that begin a character and do not end it.
size_t OpenBytes(absl::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t whole = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return whole > back ? back : 0;
  }
  return 0;
}

// {"index","text","logprobs","finish_reason"}.
class CompletionChoice : public ChoiceWriter {
 public:
  CompletionChoice(const OpenAiCalls& calls, int choice)
      : stream_(calls.stream),
        with_logprobs_(calls.logprobs),
        text_of_tokens_(!CallOf(calls, choice).has_prompt() || CallOf(calls, choice).has_truncate_prompt()),
        choice_(choice),
        awaits_prompt_(calls.echo && calls.logprobs),
        prompt_(calls.echo && !(awaits_prompt_ && text_of_tokens_) ? CallOf(calls, choice).prompt() : ""),
        text_(prompt_),
        logprobs_(calls.top_logprobs, awaits_prompt_ ? 0 : CountCharacters(text_)) {
    if (calls.prompt_logprobs.has_value()) of_prompt_.emplace(*calls.prompt_logprobs);
  }

  // The prompt's text goes with its tokens, where these are awaited.
  std::vector<std::string> Begin() override { return awaits_prompt_ ? std::vector<std::string>() : Pending(); }

  std::vector<std::string> AddPrompt(const v1::PromptLogprobs& logprobs) override {
    if (of_prompt_.has_value()) of_prompt_->Add(logprobs);
    if (!awaits_prompt_) return {};
    if (text_of_tokens_) {
      for (const v1::TokenLogprobs& token : logprobs.logprobs()) {
        if (!token.top().empty()) text_ += BytesOf(token.top(0));
      }
    }
    logprobs_.AddPrompt(logprobs, text_of_tokens_ ? std::nullopt : std::optional<absl::string_view>(prompt_));
    return Pending();
  }

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

  // A character that is not whole yet waits for its other bytes: only a prompt of ids comes in such pieces.
  std::string TakeObject() {
    const size_t open = reason_ == "null" ? OpenBytes(text_) : 0;
    const std::string text = text_.substr(0, text_.size() - open);
    text_.erase(0, text.size());
    return absl::StrCat("{\"index\":", choice_, ",\"text\":", JsonString(text), ",\"logprobs\":", logprobs_.Take(),
                        ",\"finish_reason\":", reason_, of_prompt_.has_value() ? ",\"prompt_logprobs\":" : "",
                        of_prompt_.has_value() ? of_prompt_->Take() : "", "}");
  }

  const bool stream_;
  const bool with_logprobs_;
  const bool text_of_tokens_;  // of a prompt with log probabilities: it is of ids, or only its end is used
  const int choice_;
  const bool awaits_prompt_;  // its tokens are echoed with their log probabilities
  const std::string prompt_;  // that is echoed as it came
  std::string text_;          // that was not returned yet
  CompletionLogprobs logprobs_;
  std::optional<PromptLogprobsList> of_prompt_;
  absl::string_view reason_ = "null";
};

}  // namespace

std::unique_ptr<ChoiceWriter> MakeCompletionChoice(const OpenAiCalls& calls, int choice) {
  return std::make_unique<CompletionChoice>(calls, choice);
}

}  // namespace runahead
