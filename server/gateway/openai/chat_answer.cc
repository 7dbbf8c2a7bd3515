#include <utility>

#include "absl/strings/str_cat.h"
#include "server/gateway/openai/choice_writer.h"
#include "server/gateway/openai/json_text.h"
#include "server/gateway/openai/logprobs_json.h"

namespace runahead {
namespace {

// Streamed {"index","delta","logprobs","finish_reason"}, else "message" in place of "delta".
class ChatChoice : public ChoiceWriter {
 public:
  ChatChoice(const OpenAiCalls& calls, int choice)
      : stream_(calls.stream), with_logprobs_(calls.logprobs), choice_(choice), logprobs_(calls.top_logprobs) {}

  std::vector<std::string> Begin() override {
    if (!stream_) return {};
    return {Delta("\"role\":\"assistant\",\"content\":\"\"", "null")};
  }

  std::vector<std::string> Add(const v1::Tokens& tokens) override {
    text_ += tokens.text();
    if (with_logprobs_) logprobs_.Add(tokens);
    return Pending();
  }

  std::vector<std::string> End(const v1::Finished& finished) override {
    text_ += finished.text();
    reason_ = FinishReasonJson(finished.reason());
    std::vector<std::string> events = Pending();
    if (stream_) events.push_back(Delta("", reason_));
    return events;
  }

  std::string Whole() override {
    return absl::StrCat("{\"index\":", choice_, ",\"message\":{\"role\":\"assistant\",\"content\":", JsonString(text_),
                        ",\"refusal\":null},\"logprobs\":", logprobs_.Take(), ",\"finish_reason\":", reason_, "}");
  }

 private:
  std::vector<std::string> Pending() {
    if (!stream_ || (text_.empty() && logprobs_.empty())) return {};
    return {Delta(absl::StrCat("\"content\":", JsonString(std::exchange(text_, ""))), "null")};
  }

  std::string Delta(absl::string_view members, absl::string_view reason) {
    return absl::StrCat("{\"index\":", choice_, ",\"delta\":{", members, "},\"logprobs\":", logprobs_.Take(),
                        ",\"finish_reason\":", reason, "}");
  }

  const bool stream_;
  const bool with_logprobs_;
  const int choice_;
  std::string text_;  // that was not returned yet
  ChatLogprobs logprobs_;
  absl::string_view reason_ = "null";
};

}  // namespace

std::unique_ptr<ChoiceWriter> MakeChatChoice(const OpenAiCalls& calls, int choice) {
  return std::make_unique<ChatChoice>(calls, choice);
}

}  // namespace runahead
