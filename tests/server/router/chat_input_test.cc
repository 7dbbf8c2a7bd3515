// What a request says of a chat reaches its template: seen in the ids that come back, and that a worker is given.
#include "server/router/chat_input.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/status.h"
#include "tests/testing/router_fixture.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

constexpr const char* kUser = "<|im_start|>user\nHi<|im_end|>\n";
constexpr const char* kOpening = "<|im_start|>assistant\n";

class ChatInputTest : public testing::RouterFixture {
 protected:
  void SetUp() override {
    RouterFixture::SetUp();
    chat_template_ = ChatTemplate::Parse(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "", "");
    ASSERT_TRUE(chat_template_.ok()) << chat_template_.status();
    Start({.prefill = 1});
  }

  static v1::ChatMessages ChatOf(const std::vector<std::pair<std::string, std::string>>& messages) {
    v1::ChatMessages chat;
    for (const auto& [role, content] : messages) {
      v1::ChatMessage& message = *chat.add_messages();
      message.set_role(role);
      message.set_content(content);
    }
    return chat;
  }

  // The prompt of the chat by Tokenize, as text with control tokens; that is what a worker is given for it, too.
  std::string PromptOf(const v1::ChatMessages& chat) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::TokenizeRequest request;
    *request.mutable_chat() = chat;
    v1::TokenizeResponse response;
    const absl::Status status = FromGrpcStatus(stub_->Tokenize(&context, request, &response));
    if (!status.ok()) return std::string(status.message());
    const std::vector<int32_t> ids(response.ids().begin(), response.ids().end());
    v1::GenerateRequest generate;
    *generate.mutable_chat() = chat;
    generate.mutable_stop()->set_max_tokens(1);
    const testing::Got got = Generate(generate);
    EXPECT_TRUE(got.status.ok()) << got.status;
    const v1::StartJob start = prefill_[0]->AwaitStarts(++started_).back();
    EXPECT_EQ(std::vector<int32_t>(start.ids().begin(), start.ids().end()), ids);
    return tokenizer_->Decode(ids, /*skip_special=*/false);
  }

  size_t started_ = 0;
};

TEST_F(ChatInputTest, TheAssistantsTurnIsOpenedUnlessTheRequestSaysNo) {
  v1::ChatMessages chat = ChatOf({{"user", "Hi"}});
  const std::string user = kUser;
  EXPECT_EQ(PromptOf(chat), user + kOpening);
  chat.set_add_generation_prompt(true);
  EXPECT_EQ(PromptOf(chat), user + kOpening);
  chat.set_add_generation_prompt(false);
  EXPECT_EQ(PromptOf(chat), user);
  chat.clear_add_generation_prompt();
  chat.set_template_variables(R"({"add_generation_prompt": false})");
  EXPECT_EQ(PromptOf(chat), user);
}

TEST_F(ChatInputTest, TheLastMessageIsContinuedWhereTheRequestSaysSo) {
  v1::ChatMessages chat = ChatOf({{"user", "Hi"}, {"assistant", "The capital is "}});
  const std::string begun = std::string(kUser) + kOpening + "The capital is ";
  EXPECT_EQ(PromptOf(chat), begun + "<|im_end|>\n" + kOpening);
  chat.set_continue_final_message(true);
  EXPECT_EQ(PromptOf(chat), begun);
  chat.set_add_generation_prompt(false);
  EXPECT_EQ(PromptOf(chat), begun);
  chat.set_continue_final_message(false);
  EXPECT_EQ(PromptOf(chat), begun + "<|im_end|>\n");
  chat.set_continue_final_message(true);
  chat.set_add_generation_prompt(true);
  EXPECT_THAT(PromptOf(chat), HasSubstr("chat.continue_final_message: add_generation_prompt is true, too"));
}

// A template that has turns of users and assistants only.
class ChatOfTwoInputTest : public ChatInputTest {
 protected:
  void SetUp() override {
    RouterFixture::SetUp();
    chat_template_ = ChatTemplate::Parse(
        "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}<|im_start|>{{ m.role }}\n"
        "{% for part in m.content %}{{ part.text }}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}",
        "", "");
    ASSERT_TRUE(chat_template_.ok()) << chat_template_.status();
    Start({.prefill = 1});
  }
};

TEST_F(ChatOfTwoInputTest, WhatTheModelWouldNotSeeIsRefusedByName) {
  EXPECT_EQ(PromptOf(ChatOf({{"user", "Hi"}})), kUser);
  const v1::ChatMessages lost = ChatOf({{"user", "Time?"}, {"assistant", "I ask."}, {"tool", "noon"}});
  EXPECT_THAT(PromptOf(lost), HasSubstr("chat.messages[2].content: the model's chat template leaves it out"));
  v1::GenerateRequest request;
  *request.mutable_chat() = lost;
  const testing::Got got = Generate(request);
  EXPECT_EQ(got.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BlamedField(got.status), "chat.messages[2].content");
}

}  // namespace
}  // namespace runahead
