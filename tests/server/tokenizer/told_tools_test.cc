#include "server/tokenizer/told_tools.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr const char* kWeather =
    R"([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}])";

Chat Told(const Chat& chat, bool has_system = true) {
  const auto told = WithToolsTold(chat, has_system, Always);
  EXPECT_TRUE(told.ok()) << told.status();
  EXPECT_THAT(told->tools, IsEmpty());
  return *told;
}

std::string Refusal(const Chat& chat) {
  const absl::Status status = WithToolsTold(chat, /*has_system=*/true, Always).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

ChatMessage Calling(const std::string& content, const std::string& calls) {
  ChatMessage message{"assistant", content};
  message.tool_calls = calls;
  return message;
}

TEST(ToldTools, AreLinesOfJsonInASystemMessage) {
  const Chat told = Told({.messages = {{"user", "Rain?"}}, .tools = kWeather});
  ASSERT_EQ(told.messages.size(), 2);
  EXPECT_EQ(told.messages[0].role, "system");
  EXPECT_THAT(told.messages[0].content,
              HasSubstr("<tools>\n"
                        R"({"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}})"
                        "\n</tools>\n"));
  EXPECT_EQ(told.messages[1].content, "Rain?");
}

TEST(ToldTools, StandBehindASystemMessageThatIsThere) {
  const Chat told = Told({.messages = {{"system", "Be brief."}, {"user", "Rain?"}}, .tools = kWeather});
  ASSERT_EQ(told.messages.size(), 2);
  EXPECT_THAT(told.messages[0].content, AllOf(StartsWith("Be brief.\n\n"), HasSubstr("weather")));
}

TEST(ToldTools, StandBeforeTheFirstQuestionWhereThereAreNoSystemMessages) {
  const Chat told =
      Told({.messages = {{"assistant", "Hello."}, {"user", "Rain?"}, {"user", "Snow?"}}, .tools = kWeather}, false);
  ASSERT_EQ(told.messages.size(), 3);
  EXPECT_EQ(told.messages[0].content, "Hello.");
  EXPECT_THAT(told.messages[1].content, AllOf(HasSubstr("weather"), EndsWith("\n\nRain?")));
  EXPECT_EQ(told.messages[2].content, "Snow?");
  EXPECT_EQ(Told({.messages = {{"assistant", "Hello."}}, .tools = kWeather}, false).messages[0].role, "user");
}

TEST(ToldTools, AreNotThereForAnEmptyArray) {
  const Chat told = Told({.messages = {{"user", "Rain?"}}, .tools = "[]"});
  ASSERT_EQ(told.messages.size(), 1);
  EXPECT_EQ(told.messages[0].content, "Rain?");
}

TEST(ToldTools, CallsAreWrittenAsTheyAreAskedFor) {
  const Chat told = Told({.messages = {{"user", "Rain?"},
                                       Calling("I look.", R"([{"function": {"name": "weather", "arguments":
                                                   "{\"city\":\"Zürich\"}"}}, {"name": "clock"}])"),
                                       Calling("", R"([{"name": "a\"b", "arguments": {"n": [1, null]}}])")}});
  ASSERT_EQ(told.messages.size(), 3);
  EXPECT_EQ(told.messages[1].content,
            "I look.\n<tool_call>\n"
            R"({"name": "weather", "arguments": {"city": "Zürich"}})"
            "\n</tool_call>\n<tool_call>\n"
            R"({"name": "clock", "arguments": {}})"
            "\n</tool_call>");
  EXPECT_EQ(told.messages[2].content,
            "<tool_call>\n"
            R"({"name": "a\"b", "arguments": {"n": [1, null]}})"
            "\n</tool_call>");
  EXPECT_FALSE(told.messages[1].tool_calls.has_value());
}

TEST(ToldTools, ResultsOfOneTurnAreOneMessageOfAUser) {
  const Chat told = Told({.messages = {{"user", "Both?"},
                                       {"assistant", "I look."},
                                       {"tool", "rain"},
                                       {"tool", "12:00"},
                                       {"assistant", "Rain at noon."},
                                       {"tool", "late"},
                                       {"user", "Thanks."}}});
  ASSERT_EQ(told.messages.size(), 5);
  EXPECT_EQ(told.messages[2].role, "user");
  EXPECT_EQ(told.messages[2].content,
            "<tool_response>\nrain\n</tool_response>\n<tool_response>\n12:00\n</tool_response>");
  EXPECT_EQ(told.messages[4].content, "<tool_response>\nlate\n</tool_response>\n\nThanks.");
}

TEST(ToldTools, WhatIsWrongIsNamedWhereItCame) {
  EXPECT_THAT(Refusal({.messages = {{"user", "a"}}, .tools = "[1"}), StartsWith("tools"));
  EXPECT_THAT(Refusal({.messages = {{"user", "a"}, Calling("", R"([{"arguments": {}}])")}}),
              AllOf(StartsWith("messages[1].tool_calls: "), HasSubstr("no name")));
  EXPECT_THAT(Refusal({.messages = {{"user", "a"}, Calling("", R"(["secret"])")}}),
              AllOf(StartsWith("messages[1].tool_calls"), Not(HasSubstr("secret"))));
  EXPECT_THAT(Refusal({.messages = {{"user", "a"}, Calling("", R"([{"name": "f", "arguments": "secret"}])")}}),
              AllOf(StartsWith("messages[1].tool_calls[0].arguments"), Not(HasSubstr("secret"))));
}

TEST(ToldTools, AreWantedWhereToolsOrCallsAre) {
  EXPECT_FALSE(HasToolsOrCalls({.messages = {{"user", "a"}, {"tool", "b"}}}));
  EXPECT_TRUE(HasToolsOrCalls({.messages = {{"user", "a"}}, .tools = kWeather}));
  EXPECT_TRUE(HasToolsOrCalls({.messages = {{"user", "a"}, Calling("", "[]")}}));
}

}  // namespace
}  // namespace runahead
