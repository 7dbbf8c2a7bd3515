#include "server/tokenizer/lost_input.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/server/tokenizer/plain_chat.h"

namespace runahead {
namespace {

// A chat of instructions "rule 0", "rule 1", ... and what a user asks.
Chat Instructed(int count) {
  Chat chat = ChatOf({});
  for (int i = 0; i < count; ++i) chat.messages.push_back({"system", absl::StrCat("rule ", i)});
  chat.messages.push_back({"user", "What now?"});
  return chat;
}

// LostMessage of a text that `write` makes of each message, asked for all instructions; counts how often it renders.
class LostInputTest : public testing::Test {
 protected:
  using Write = std::string (*)(const ChatMessage&);

  std::optional<size_t> Lost(const Chat& chat, Write write) {
    const auto render = [&](const Chat& one) -> absl::StatusOr<MarkedText> {
      ++rendered_;
      return Rendered(one, write);
    };
    const auto keep_going = [this] {
      ++looked_for_;
      return absl::OkStatus();
    };
    return *LostMessage(chat, ContentForms(), /*each_system=*/true, Rendered(chat, write), keep_going, render);
  }

  static MarkedText Rendered(const Chat& chat, Write write) {
    MarkedText text;
    for (const ChatMessage& message : chat.messages) {
      text += FromUtf8("<turn>", /*own=*/true) + FromUtf8(write(message), /*own=*/false);
    }
    return text;
  }

  int rendered_ = 0, looked_for_ = 0;
};

// The newest user's words are looked for in all of the text, and instructions on one way through it: each looked for in
// all of it would keep a thread of the router for minutes.
TEST_F(LostInputTest, ManyInstructionsInTheirOrderAreFoundOnOneWayThroughTheText) {
  EXPECT_EQ(Lost(Instructed(10'000), [](const ChatMessage& message) { return message.content; }), std::nullopt);
  EXPECT_EQ(looked_for_, 1);
  EXPECT_EQ(rendered_, 0);
}

TEST_F(LostInputTest, OneOfManyInstructionsThatIsLeftOutIsNamed) {
  Chat chat = Instructed(1'000);
  chat.messages[600].content = "the one that is lost";
  EXPECT_EQ(Lost(chat,
                 [](const ChatMessage& message) {
                   return message.content == "the one that is lost" || message.content.empty() || message.content == "0"
                              ? "-"
                              : message.content;
                 }),
            600);
}

// The user says again what the first one said, behind all others. Those are found all the same.
TEST_F(LostInputTest, OneThatIsLeftOutIsNamedBehindOneWhoseWordsTheUserSays) {
  Chat chat = Instructed(40);
  chat.messages.back().content = "rule 0 said what?";
  EXPECT_EQ(Lost(chat,
                 [](const ChatMessage& message) {
                   const bool lost =
                       message.role == "system" && (message.content == "rule 0" || message.content == "rule 39" ||
                                                    message.content.empty() || message.content == "0");
                   return lost ? "-" : message.content;
                 }),
            39);
}

TEST_F(LostInputTest, TheFirstInstructionsThatAreWrittenOtherwiseAreLookedForByRendering) {
  EXPECT_EQ(Lost(Instructed(1'000), [](const ChatMessage& message) { return absl::AsciiStrToUpper(message.content); }),
            std::nullopt);
  EXPECT_EQ(rendered_, 2 * (16 + 1)) << "the user's, too";
}

TEST_F(LostInputTest, WhatTheTemplateItselfWroteIsNoInstruction) {
  Chat chat = Instructed(1);
  chat.messages[0].content = "turn";
  EXPECT_EQ(Lost(chat, [](const ChatMessage& message) { return message.role == "user" ? message.content : "-"; }), 0);
}

TEST_F(LostInputTest, InstructionsInAnotherOrderAreFound) {
  Chat chat = Instructed(3);
  const MarkedText text = FromUtf8("rule 2 rule 1 rule 0 What now?", /*own=*/false);
  const auto render = [&](const Chat&) -> absl::StatusOr<MarkedText> {
    ++rendered_;
    return text;
  };
  EXPECT_EQ(*LostMessage(chat, ContentForms(), /*each_system=*/true, text, Always, render), std::nullopt);
  EXPECT_EQ(rendered_, 0);
}

}  // namespace
}  // namespace runahead
