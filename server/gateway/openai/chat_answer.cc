#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/base/random.h"
#include "server/gateway/openai/choice_writer.h"
#include "server/gateway/openai/json_text.h"
#include "server/gateway/openai/logprobs_json.h"
#include "server/gateway/openai/reasoning.h"
#include "server/gateway/openai/tool_calls.h"

namespace runahead {
namespace {

// The ids of one choice's calls: nine letters and digits, for Mistral's templates take no others back. None comes
// twice.
class CallIds {
 public:
  std::string Next() {
    next_ = (next_ + kStride) % kCount;
    std::string id;
    for (uint64_t rest = next_; id.size() < kLength; rest /= kCharacters.size())
      id += kCharacters[rest % kCharacters.size()];
    return id;
  }

 private:
  static constexpr absl::string_view kCharacters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  static constexpr size_t kLength = 9;
  static constexpr uint64_t kCount = 13'537'086'546'263'552;  // 62^9
  // Prime to kCount, so that all others come before one comes again; the next id does not look like the one before.
  static constexpr uint64_t kStride = 8'366'379'594'239'857;

  uint64_t next_ = RandomBits64() % kCount;
};

// A chat's text, told apart.
class ChatText {
 public:
  explicit ChatText(const OpenAiCalls& calls) {
    if (calls.reasoning_format == "think") thinking_.emplace(/*inside=*/false);
    if (calls.reasoning_format == "think_open") thinking_.emplace(/*inside=*/true);
    const std::optional<ToolFormat> format = ToolFormatOf(calls.tool_format);
    if (format.has_value()) calling_.emplace(*format, calls.tool_names, calls.one_tool_call);
  }

  void Add(absl::string_view text) {
    if (!thinking_.has_value()) return AddSaid(text);
    std::string said;
    thinking_->Feed(text, reasoning, said);
    AddSaid(said);
  }

  void Finish() {
    std::string said;
    if (thinking_.has_value()) thinking_->Finish(reasoning, said);
    AddSaid(said);
    if (calling_.has_value()) calling_->Finish(content);
  }

  // Of the last call: it is no JSON then.
  bool in_arguments() const { return calling_.has_value() && calling_->in_arguments(); }

  // That was not taken yet.
  std::string reasoning;
  std::string content;
  std::vector<ToolCallPart> calls;

 private:
  void AddSaid(absl::string_view text) {
    if (calling_.has_value()) return calling_->Feed(text, content, calls);
    content.append(text.data(), text.size());
  }

  std::optional<ReasoningParser> thinking_;
  std::optional<ToolCallParser> calling_;
};

// Streamed {"index","delta","logprobs","finish_reason"}, else "message" in place of "delta".
class ChatChoice : public ChoiceWriter {
 public:
  ChatChoice(const OpenAiCalls& calls, int choice)
      : stream_(calls.stream),
        with_logprobs_(calls.logprobs),
        choice_(choice),
        text_(calls),
        logprobs_(calls.top_logprobs) {}

  std::vector<std::string> Begin() override {
    if (!stream_) return {};
    return {Delta("\"role\":\"assistant\",\"content\":\"\"")};
  }

  std::vector<std::string> AddPrompt(const v1::PromptLogprobs& /*logprobs*/) override { return {}; }

  std::vector<std::string> Add(const v1::Tokens& tokens) override {
    text_.Add(tokens.text());
    if (with_logprobs_) logprobs_.Add(tokens);
    return Pending();
  }

  std::vector<std::string> End(const v1::Finished& finished) override {
    text_.Add(finished.text());
    text_.Finish();
    std::vector<std::string> events = Pending();
    const bool called = called_ > 0 || !text_.calls.empty();
    // A stop string may stand within a call, too.
    const bool stopped = finished.reason() != v1::FINISH_REASON_LENGTH && !text_.in_arguments();
    reason_ = called && stopped ? "\"tool_calls\"" : FinishReasonJson(finished.reason());
    if (stream_) events.push_back(Delta(""));
    return events;
  }

  std::string Whole() override {
    const std::string calls = TakeCalls();
    const bool only_calls = text_.content.empty() && !calls.empty();
    std::string message = absl::StrCat(
        "\"role\":\"assistant\",\"content\":", only_calls ? "null" : JsonString(text_.content), ",\"refusal\":null");
    if (!text_.reasoning.empty()) absl::StrAppend(&message, ",\"reasoning_content\":", JsonString(text_.reasoning));
    if (!calls.empty()) absl::StrAppend(&message, ",\"tool_calls\":[", calls, "]");
    return Object("message", message);
  }

 private:
  std::vector<std::string> Pending() {
    std::vector<std::string> deltas;
    if (!stream_) return deltas;
    if (!text_.reasoning.empty()) {
      deltas.push_back(Delta(absl::StrCat("\"reasoning_content\":", JsonString(std::exchange(text_.reasoning, "")))));
    }
    if (!text_.content.empty()) {
      deltas.push_back(Delta(absl::StrCat("\"content\":", JsonString(std::exchange(text_.content, "")))));
    }
    if (!text_.calls.empty()) deltas.push_back(Delta(absl::StrCat("\"tool_calls\":[", TakeCalls(), "]")));
    // Probabilities of tokens whose text is not certain yet.
    if (!logprobs_.empty()) deltas.push_back(Delta("\"content\":\"\""));
    return deltas;
  }

  std::string TakeCalls() {
    std::string calls;
    for (const ToolCallPart& call : std::exchange(text_.calls, {})) {
      if (call.begins) ++called_;
      const std::string index = stream_ ? absl::StrCat("\"index\":", called_ - 1, ",") : "";
      const std::string arguments = absl::StrCat("\"arguments\":", JsonString(call.arguments), "}}");
      if (!call.begins) {
        AddToJson(calls, absl::StrCat("{", index, "\"function\":{", arguments));
        continue;
      }
      AddToJson(calls, absl::StrCat("{", index, "\"id\":\"", ids_.Next(),
                                    "\",\"type\":\"function\",\"function\":{\"name\":", JsonString(call.name), ",",
                                    arguments));
    }
    return calls;
  }

  std::string Delta(absl::string_view members) { return Object("delta", members); }

  std::string Object(absl::string_view key, absl::string_view members) {
    return absl::StrCat("{\"index\":", choice_, ",\"", key, "\":{", members, "},\"logprobs\":", logprobs_.Take(),
                        ",\"finish_reason\":", reason_, "}");
  }

  const bool stream_;
  const bool with_logprobs_;
  const int choice_;
  ChatText text_;
  ChatLogprobs logprobs_;
  int called_ = 0;  // calls of tools that were begun
  CallIds ids_;
  absl::string_view reason_ = "null";
};

}  // namespace

std::unique_ptr<ChoiceWriter> MakeChatChoice(const OpenAiCalls& calls, int choice) {
  return std::make_unique<ChatChoice>(calls, choice);
}

}  // namespace runahead
