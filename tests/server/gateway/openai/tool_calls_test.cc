#include "server/gateway/openai/tool_calls.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using Calls = std::vector<std::pair<std::string, std::string>>;

struct ToldApart {
  std::string content;
  Calls calls;
  bool operator==(const ToldApart& other) const { return content == other.content && calls == other.calls; }
};

void PrintTo(const ToldApart& told, std::ostream* out) {
  *out << "content '" << told.content << "'";
  for (const auto& [name, arguments] : told.calls) *out << ", call " << name << " " << arguments;
}

ToldApart ToldOf(const char* format, const std::vector<std::string>& pieces) {
  ToolCallParser parser(*ToolFormatOf(format));
  ToldApart told;
  std::vector<ToolCallPart> calls;
  for (const std::string& piece : pieces) parser.Feed(piece, told.content, calls);
  parser.Finish(told.content);
  for (const ToolCallPart& call : calls) told.calls.emplace_back(call.name, call.arguments);
  return told;
}

struct ToolText {
  const char* format;
  const char* text;
  const char* content;
  Calls calls;
};

class ToolCallParserTells : public ::testing::TestWithParam<ToolText> {};

TEST_P(ToolCallParserTells, CallsFromContentHoweverTheTextIsCut) {
  const ToolText& given = GetParam();
  const std::string text = given.text;
  const ToldApart expected{given.content, given.calls};
  EXPECT_EQ(ToldOf(given.format, {text}), expected);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(ToldOf(given.format, {text.substr(0, cut), text.substr(cut)}), expected) << "cut at " << cut;
  }
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(ToldOf(given.format, bytes), expected) << "byte by byte";
}

INSTANTIATE_TEST_SUITE_P(
    Hermes, ToolCallParserTells,
    ::testing::Values(
        ToolText{
            "hermes", "Hello <b> {\"name\":\"f\"} </tool_call>\n", "Hello <b> {\"name\":\"f\"} </tool_call>\n", {}},
        ToolText{"hermes",
                 "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": [2]}}\n</tool_call>\n",
                 "",
                 {{"f", "{\"b\": 1, \"a\": [2]}"}}},
        ToolText{
            "hermes", "I look.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "I look.\n", {{"f", "{}"}}},
        ToolText{
            "hermes",
            "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}"
            "</tool_call>",
            "",
            {{"f", "{}"}, {"g", "{}"}}},
        ToolText{"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> Done.", " Done.", {{"f", "{}"}}},
        // Tags, brackets and quotes in a text of the arguments.
        ToolText{"hermes",
                 "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"}</tool_call>\\\"{\\\\\"}}</tool_call>",
                 "",
                 {{"f", "{\"s\":\"}</tool_call>\\\"{\\\\\"}"}}},
        // Arguments as a text, other names, none at all.
        ToolText{"hermes",
                 "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>",
                 "",
                 {{"f", "{\"a\":1}"}}},
        ToolText{
            "hermes", "<tool_call>{\"parameters\":{\"a\":1},\"name\":\"f\"}</tool_call>", "", {{"f", "{\"a\":1}"}}},
        ToolText{"hermes", "<tool_call>{\"name\":\"f\"}</tool_call>", "", {{"f", "{}"}}},
        // Without what should stand behind.
        ToolText{"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "", {{"f", "{}"}}},
        ToolText{"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool", "", {{"f", "{}"}}},
        ToolText{
            "hermes",
            "<tool_call>{\"name\":\"f\",\"arguments\":{}}\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>",
            "",
            {{"f", "{}"}, {"g", "{}"}}},
        // What is no call stays what it is.
        ToolText{"hermes", "<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>", {}},
        ToolText{"hermes", "<tool_call>{\"name\":5}</tool_call>!", "<tool_call>{\"name\":5}</tool_call>!", {}},
        ToolText{"hermes",
                 "<tool_call>{\"name\":\"f\",\"arguments\":[]}",
                 "<tool_call>{\"name\":\"f\",\"arguments\":[]}",
                 {}},
        ToolText{"hermes", "<tool_call>{\"name\":\"f\",", "<tool_call>{\"name\":\"f\",", {}},
        // Cut off in its arguments, or with arguments that are no JSON: it was told as a call before.
        ToolText{"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\"", "", {{"f", "{\"a\""}}},
        ToolText{"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{a:1}}</tool_call>", "", {{"f", "{a:1}"}}},
        // More members beside.
        ToolText{"hermes",
                 "<tool_call>{\"id\": 5, \"x\": {\"name\": \"g\"}, \"y\": [{}, \"{\"], \"name\": \"f\\u0021\", "
                 "\"arguments\": {\"arguments\": {}}, \"z\": {\"}\": \"\"}}</tool_call>",
                 "",
                 {{"f!", "{\"arguments\": {}}"}}},
        ToolText{"hermes",
                 "<tool_call>{\"x\":\"name\":\"f\",\"arguments\":{}}",
                 "<tool_call>{\"x\":\"name\":\"f\",\"arguments\":{}}",
                 {}},
        ToolText{"hermes",
                 "<tool_call>{a}<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
                 "<tool_call>{a}",
                 {{"f", "{}"}}},
        ToolText{"hermes",
                 "<tool_call><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
                 "<tool_call>",
                 {{"f", "{}"}}},
        ToolText{"hermes", "a <<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "a <", {{"f", "{}"}}},
        ToolText{"hermes", "ends <tool_c", "ends <tool_c", {}}, ToolText{"hermes", " \n", " \n", {}},
        ToolText{"hermes", "", "", {}}));

INSTANTIATE_TEST_SUITE_P(
    Llama3, ToolCallParserTells,
    ::testing::Values(
        ToolText{"llama3", "{\"name\": \"f\", \"parameters\": {\"a\": \"b\"}}", "", {{"f", "{\"a\": \"b\"}"}}},
        ToolText{"llama3", "<|python_tag|>{\"name\":\"f\",\"parameters\":{}}", "", {{"f", "{}"}}},
        ToolText{"llama3", "\n{\"type\":\"function\",\"name\":\"f\",\"parameters\":{}}\n", "", {{"f", "{}"}}},
        ToolText{"llama3",
                 "{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"g\",\"parameters\":{}}",
                 "",
                 {{"f", "{}"}, {"g", "{}"}}},
        ToolText{"llama3", "It is {\"name\":\"f\",\"parameters\":{}}", "It is {\"name\":\"f\",\"parameters\":{}}", {}},
        ToolText{"llama3", "{\"city\":\"Rome\"} {\"name\":\"f\"}", "{\"city\":\"Rome\"} {\"name\":\"f\"}", {}},
        ToolText{"llama3", "<|python_tag|>print(1)", "<|python_tag|>print(1)", {}},
        ToolText{"llama3", "; {\"name\":\"f\"}", "; {\"name\":\"f\"}", {}},
        ToolText{"llama3", "{\"name\":\"f\",\"par", "{\"name\":\"f\",\"par", {}},
        ToolText{"llama3", "<|py", "<|py", {}}));

TEST(ToolCallParser, ContentIsToldAtOnce) {
  ToolCallParser parser(*ToolFormatOf("hermes"));
  std::string content;
  std::vector<ToolCallPart> calls;
  parser.Feed("Hello <", content, calls);
  EXPECT_EQ(content, "Hello ");
  parser.Feed("b", content, calls);
  EXPECT_EQ(content, "Hello <b");
}

// What a parser tells of a piece.
std::vector<std::string> PartsOf(ToolCallParser& parser, const std::string& text) {
  std::string content;
  std::vector<ToolCallPart> calls;
  parser.Feed(text, content, calls);
  EXPECT_EQ(content, "");
  std::vector<std::string> parts;
  for (const ToolCallPart& call : calls) parts.push_back((call.begins ? call.name + " " : "") + call.arguments);
  return parts;
}

TEST(ToolCallParser, ArgumentsAreToldAsTheyComeOnceTheNameIsKnown) {
  ToolCallParser parser(*ToolFormatOf("hermes"));
  EXPECT_THAT(PartsOf(parser, "<tool_call>{\"name\": \"f\", \"arguments\": "), ::testing::IsEmpty());
  EXPECT_THAT(PartsOf(parser, "{\"a"), ::testing::ElementsAre("f {\"a"));
  EXPECT_THAT(PartsOf(parser, "\": 1"), ::testing::ElementsAre("\": 1"));
  EXPECT_THAT(PartsOf(parser, "}}\n</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{"),
              ::testing::ElementsAre("}", "g {"));
  EXPECT_THAT(PartsOf(parser, "}}</tool_call>"), ::testing::ElementsAre("}"));
}

TEST(ToolCallParser, AnyOtherCallIsToldAtItsLastBracket) {
  ToolCallParser parser(*ToolFormatOf("hermes"));
  EXPECT_THAT(PartsOf(parser, "<tool_call>{\"arguments\":{},\"name\":\"f\""), ::testing::IsEmpty());
  EXPECT_THAT(PartsOf(parser, "}"), ::testing::ElementsAre("f {}"));
  EXPECT_THAT(PartsOf(parser, "<tool_call>{\"name\":\"f\",\"arguments\":\"{}\""), ::testing::IsEmpty());
  EXPECT_THAT(PartsOf(parser, "}"), ::testing::ElementsAre("f {}"));
}

TEST(ToolCallParser, LongTextsTakeTimeInTheirLength) {
  // Each of these would take minutes if what is held were looked through for each character.
  for (const std::string& part : {std::string(" "), std::string("<tool_call>"), std::string("<tool_call>{\"")}) {
    ToolCallParser parser(*ToolFormatOf("hermes"));
    std::string text;
    while (text.size() < (size_t{2} << 20)) text += part;
    std::string content;
    std::vector<ToolCallPart> calls;
    for (const char c : text) parser.Feed(absl::string_view(&c, 1), content, calls);
    parser.Finish(content);
    EXPECT_EQ(content, text);
  }
}

TEST(ToolFormatOf, KnowsItsNames) {
  EXPECT_FALSE(ToolFormatOf("").has_value());
  EXPECT_FALSE(ToolFormatOf("pythonic").has_value());
}

}  // namespace
}  // namespace runahead
