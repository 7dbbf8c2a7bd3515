// A chat template, rendered for a chat with everything that a chat may have.
#include "server/tokenizer/chat_template.h"

#include "server/tokenizer/utf8.h"
#include "tests/fuzz/fuzz.h"

namespace runahead {
namespace {

Chat FullChat() {
  Chat chat;
  chat.messages = {
      {.role = "system", .content = " Be brief. "},
      {.role = "user", .content = "How is the weather in K\xC3\xB6ln?", .name = "ann"},
      {.role = "assistant",
       .content = "",
       .reasoning_content = "a tool",
       .tool_calls = R"([{"id":"1","type":"function","function":{"name":"f","arguments":{"x":[1,2.5,null]}}}])"},
      {.role = "tool", .content = "rain", .tool_call_id = "1"}};
  chat.tools = R"([{"type":"function","function":{"name":"f","parameters":{"b":true,"a":{"type":"string"}}}}])";
  chat.variables = R"({"enable_thinking":false,"n":3})";
  return chat;
}

}  // namespace

void Fuzz(std::string_view input) {
  const auto chat_template = ChatTemplate::Parse(input, "<s>", "</s>");
  if (!chat_template.ok()) return fuzz::CheckRefusal(chat_template.status(), "");
  static const Chat chat = FullChat();
  int asked = 0;
  // What takes long is told to end, and does.
  const auto keep_going = [&asked] {
    RUNAHEAD_CHECK(asked <= 30);
    return ++asked <= 30 ? absl::OkStatus() : absl::DeadlineExceededError("it takes too long");
  };
  const auto text = chat_template->Render(chat, keep_going);
  if (!text.ok()) return fuzz::CheckRefusal(text.status(), "");
  RUNAHEAD_CHECK(ReplaceInvalidUtf8(*text) == *text);
  asked = 0;
  RUNAHEAD_CHECK(*chat_template->Render(chat, keep_going) == *text);
}

}  // namespace runahead
