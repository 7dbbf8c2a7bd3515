#include "server/tokenizer/chat_values.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/jinja_render.h"

namespace runahead {
namespace {

using testing::HasSubstr;

TEST(ChatValues, JsonOfCallersIsChecked) {
  EXPECT_FALSE(JsonValues("{").ok());
  EXPECT_FALSE(JsonValues("[1] x").ok());
  EXPECT_FALSE(JsonValues("").ok());
  EXPECT_FALSE(JsonValues("\"\xff\"").ok());
  EXPECT_THAT(std::string(JsonValues("18446744073709551615").status().message()), HasSubstr("beyond 64 bits"));
  EXPECT_THAT(std::string(JsonValues("99999999999999999999999").status().message()), HasSubstr("beyond 64 bits"));
  EXPECT_EQ(std::get<double>(*JsonValues("1e22")), 1e22);  // what is no integer may be as large as it is
  EXPECT_TRUE(JsonValues(std::string(50, '[') + std::string(50, ']')).ok());
  EXPECT_THAT(std::string(JsonValues(std::string(51, '[') + std::string(51, ']')).status().message()),
              HasSubstr("nested deeper than 50"));
  EXPECT_FALSE(JsonValues(std::string(1 << 20, '[')).ok());
  EXPECT_EQ(JsonValues(R"({"k": 1, "l": 2, "k": [3]})").status().message(), "it has a name twice in one object");
  EXPECT_EQ(jinja::Rendered("{{ a }}", R"({"a": {"k": 1, "A": [3], "b": null}})"), "{'k': 1, 'A': [3], 'b': None}");
}

TEST(ChatValues, AChatsOwnVariablesComeBeforeTheTemplatesNames) {
  Chat chat;
  chat.messages = {{"user", "hi"}};
  chat.variables = R"({"documents": 1, "thinking": true, "continue_final_message": true})";
  const auto values = ValuesOf(chat);
  ASSERT_TRUE(values.ok()) << values.status();
  std::string names;
  for (const auto& [name, value] : values->variables) names += name + " ";
  EXPECT_EQ(names, "documents documents thinking messages tools add_generation_prompt ");
  EXPECT_NE(jinja::As<jinja::List>(values->variables[3].second), nullptr);
  EXPECT_FALSE(*jinja::As<bool>(values->variables[5].second));
  EXPECT_TRUE(values->continues);
}

TEST(ChatValues, OnlyKnownRolesAreTheTemplates) {
  Chat chat;
  chat.messages = {{"user", "user"}, {"<s>", "hi"}};
  const auto values = ValuesOf(chat);
  ASSERT_TRUE(values.ok()) << values.status();
  const auto* messages = jinja::As<jinja::List>(values->variables[1].second);
  ASSERT_NE(messages, nullptr);
  const auto is_own = [&](size_t message, const char* key) {
    const jinja::Value* value = jinja::As<jinja::Dict>(messages->items[message])->Get(key);
    return Parts(*jinja::As<MarkedText>(*value))[0].parse_special;
  };
  EXPECT_TRUE(is_own(0, "role"));
  EXPECT_FALSE(is_own(0, "content"));
  EXPECT_FALSE(is_own(1, "role"));
}

TEST(ChatValues, WhatIsWrongIsSaidWithItsPlace) {
  const auto refusal = [](const Chat& chat) { return std::string(ValuesOf(chat).status().message()); };
  Chat chat;
  EXPECT_THAT(refusal(chat), HasSubstr("messages: a chat needs at least one message"));
  chat.messages = {{"user", "hi"}, {"", "hi"}};
  EXPECT_THAT(refusal(chat), HasSubstr("messages[1].role: it is empty"));
  chat.messages[1] = {"assistant", ""};
  chat.messages[1].tool_calls = "[";
  EXPECT_THAT(refusal(chat), HasSubstr("messages[1].tool_calls: "));
  chat.messages.pop_back();
  chat.variables = "[]";
  EXPECT_THAT(refusal(chat), HasSubstr("template_variables: it is no JSON object"));
  chat.tools = "{";
  EXPECT_THAT(refusal(chat), HasSubstr("tools: "));
}

}  // namespace
}  // namespace runahead
