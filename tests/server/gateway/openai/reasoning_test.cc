#include "server/gateway/openai/reasoning.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

// What was thought, and what was said.
std::pair<std::string, std::string> ThoughtAndSaid(bool inside, const std::vector<std::string>& pieces) {
  ReasoningParser parser(inside);
  std::string thought;
  std::string said;
  for (const std::string& piece : pieces) parser.Feed(piece, thought, said);
  parser.Finish(thought, said);
  return {thought, said};
}

struct ThinkingText {
  bool inside;
  const char* text;
  const char* thought;
  const char* said;
};

class ReasoningParserTells : public ::testing::TestWithParam<ThinkingText> {};

TEST_P(ReasoningParserTells, WhatWasThoughtHoweverTheTextIsCut) {
  const ThinkingText& given = GetParam();
  const std::string text = given.text;
  const std::pair<std::string, std::string> expected(given.thought, given.said);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(ThoughtAndSaid(given.inside, {text.substr(0, cut), text.substr(cut)}), expected) << "cut at " << cut;
  }
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(ThoughtAndSaid(given.inside, bytes), expected) << "byte by byte";
}

INSTANTIATE_TEST_SUITE_P(
    Each, ReasoningParserTells,
    ::testing::Values(
        ThinkingText{false, "<think>\nHm, <b>.\n\nYes. \n</think>\n\nIt is 4.\n", "Hm, <b>.\n\nYes.", "It is 4.\n"},
        ThinkingText{false, "\n <think>a</think>b", "a", "b"},
        ThinkingText{false, "<think>\n\n</think>\n\nShort.", "", "Short."},
        ThinkingText{false, "It is 4. <think>no</think>", "", "It is 4. <think>no</think>"},
        ThinkingText{false, " <thin air", "", " <thin air"}, ThinkingText{false, " <thi", "", " <thi"},
        ThinkingText{false, "<think>cut off", "cut off", ""}, ThinkingText{false, "<think>a </thin", "a </thin", ""},
        ThinkingText{false, "<think>a <</think>b", "a <", "b"},
        ThinkingText{false, "<think>a</think><think>b</think>", "a", "<think>b</think>"},
        ThinkingText{true, "\nHm. </think>\nYes", "Hm.", "Yes"}, ThinkingText{true, "never ends  ", "never ends", ""},
        ThinkingText{true, "</think>x", "", "x"}, ThinkingText{false, "", "", ""}, ThinkingText{true, "", "", ""}));

TEST(ReasoningParser, ThoughtsAreToldAsTheyCome) {
  ReasoningParser parser(true);
  std::string thought;
  std::string said;
  parser.Feed("So, well", thought, said);
  EXPECT_EQ(thought, "So, well");
  parser.Feed(" </", thought, said);
  EXPECT_EQ(thought, "So, well");
  parser.Feed("b", thought, said);
  EXPECT_EQ(thought, "So, well </b");
}

TEST(ReasoningParser, ManyBlanksTakeTimeInTheirLength) {
  ReasoningParser parser(true);
  std::string thought;
  std::string said;
  parser.Feed("a", thought, said);
  for (int i = 0; i < 2000000; ++i) parser.Feed("\n", thought, said);
  parser.Feed("b", thought, said);
  EXPECT_EQ(thought.size(), 2000002u);
}

}  // namespace
}  // namespace runahead
