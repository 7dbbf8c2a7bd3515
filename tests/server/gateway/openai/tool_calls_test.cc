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

// A parser for a request that has the tools f, g and h.
ToolCallParser ParserOf(const char* format, bool only_first = false) {
  static const auto* const names = new ToolNames(new absl::flat_hash_set<std::string>{"f", "g", "h"});
  return ToolCallParser(*ToolFormatOf(format), *names, only_first);
}

ToldApart ToldOf(const char* format, const std::vector<std::string>& pieces) {
  ToolCallParser parser = ParserOf(format);
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

constexpr char kFenced[] = "json Action: ```json\n[{\"name\": \"NAME\", \"arguments\": {}}]\n```";
constexpr char kMarked[] = "json [TOOL_CALLS] [{\"name\": \"NAME\", \"arguments\": {}}]";

INSTANTIATE_TEST_SUITE_P(
    Json, ToolCallParserTells,
    ::testing::Values(
        ToolText{"json", "{\"name\": \"f\", \"arguments\": {\"a\": \"b\"}}", "", {{"f", "{\"a\": \"b\"}"}}},
        ToolText{"json", "\n [ {\"name\":\"f\",\"arguments\":{}} ]\n", "", {{"f", "{}"}}},
        ToolText{"json",
                 "[{\"name\":\"f\",\"arguments\":{\"a\":[{}]}},\n {\"name\":\"g\",\"parameters\":{}}]",
                 "",
                 {{"f", "{\"a\":[{}]}"}, {"g", "{}"}}},
        ToolText{
            "json",
            "{\"name\":\"f\",\"arguments\":{}}\n{\"name\":\"g\",\"arguments\":{}}, {\"name\":\"h\",\"arguments\":{}}",
            "",
            {{"f", "{}"}, {"g", "{}"}, {"h", "{}"}}},
        // Keys of other models, before and behind each other; arguments as a text; more members.
        ToolText{"json", "[{\"tool_name\":\"f\",\"parameters\":{\"a\":1}}]", "", {{"f", "{\"a\":1}"}}},
        ToolText{"json", "{\"input\":{\"a\":1},\"name\":\"f\"}", "", {{"f", "{\"a\":1}"}}},
        ToolText{"json", "[{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}]", "", {{"f", "{\"a\":1}"}}},
        ToolText{"json", "[{\"name\":\"f\",\"arguments\":{},\"id\":\"abcdefghi\"}]", "", {{"f", "{}"}}},
        ToolText{"json",
                 "[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":{}}}},"
                 "{\"function\":{\"arguments\":{},\"name\":\"g\"}}]",
                 "",
                 {{"f", "{\"a\":{}}"}, {"g", "{}"}}},
        // What is no call is content to the byte.
        ToolText{"json", " {\"name\": \"Alice\", \"age\": 3} ", " {\"name\": \"Alice\", \"age\": 3} ", {}},
        ToolText{"json", "[1, {\"name\":\"f\"}]", "[1, {\"name\":\"f\"}]", {}},
        ToolText{"json", "[[{\"name\":\"f\",\"arguments\":{}}]]", "[[{\"name\":\"f\",\"arguments\":{}}]]", {}},
        ToolText{
            "json", "[{\"city\": \"Rome\"}, {\"city\": \"Bern\"}]", "[{\"city\": \"Rome\"}, {\"city\": \"Bern\"}]", {}},
        ToolText{"json", "{\"function\": \"f\", \"arguments\": {}}", "{\"function\": \"f\", \"arguments\": {}}", {}},
        ToolText{"json", "{\"name\":\"f\",\"arguments\":[1]}", "{\"name\":\"f\",\"arguments\":[1]}", {}},
        ToolText{"json", "I call {\"name\":\"f\",\"arguments\":{}}", "I call {\"name\":\"f\",\"arguments\":{}}", {}},
        ToolText{"json", "[]", "[]", {}}, ToolText{"json", "[ ", "[ ", {}}, ToolText{"json", "", "", {}},
        ToolText{"json", "[{\"name\":\"f\",\"arguments\":{}}] Done, then.", " Done, then.", {{"f", "{}"}}},
        ToolText{"json", "[{\"name\":\"f\",\"arguments\":{}}, {\"x\":1}]", ", {\"x\":1}]", {{"f", "{}"}}},
        ToolText{"json", "[{\"name\":\"f\",\"arguments\":{}} and", " and", {{"f", "{}"}}},
        // Cut off.
        ToolText{"json", "[{\"name\":\"f\",\"arg", "[{\"name\":\"f\",\"arg", {}},
        ToolText{"json", "[{\"name\":\"f\",\"arguments\":{\"a\"", "", {{"f", "{\"a\""}}},
        ToolText{"json", "[{\"name\":\"f\",\"arguments\":{}}, ", "", {{"f", "{}"}}}));

INSTANTIATE_TEST_SUITE_P(
    JsonLikeAnExample, ToolCallParserTells,
    ::testing::Values(
        ToolText{
            kFenced,
            "Action: ```json\n[\n    {\"tool_name\":\"f\",\"parameters\":{}},{\"name\":\"g\",\"arguments\":{}}\n]\n```",
            "",
            {{"f", "{}"}, {"g", "{}"}}},
        ToolText{kFenced, "Action: ```json\n{\"name\":\"f\",\"arguments\":{}}\n``` ok", " ok", {{"f", "{}"}}},
        ToolText{kFenced, "[{\"name\":\"f\",\"arguments\":{}}]", "", {{"f", "{}"}}},
        ToolText{kFenced, "Action: ```json\n[1]\n```", "Action: ```json\n[1]\n```", {}},
        ToolText{kFenced, "Action: none", "Action: none", {}},
        ToolText{kMarked, "[TOOL_CALLS] [{\"name\":\"f\",\"arguments\":{}}]", "", {{"f", "{}"}}},
        ToolText{kMarked,
                 "[TOOL_CALLS]{\"name\":\"f\",\"arguments\":{}}\n[TOOL_CALLS]{\"name\":\"g\",\"arguments\":{}}",
                 "",
                 {{"f", "{}"}, {"g", "{}"}}},
        // A list begins as the marker does.
        ToolText{kMarked, "[{\"name\":\"f\",\"arguments\":{}}]", "", {{"f", "{}"}}},
        ToolText{kMarked,
                 "[ {\"name\":\"f\",\"arguments\":{}}][{\"name\":\"g\",\"arguments\":{}}]",
                 "",
                 {{"f", "{}"}, {"g", "{}"}}},
        ToolText{kMarked, "[TOOL_CALLS]f{}", "[TOOL_CALLS]f{}", {}}, ToolText{kMarked, "[TOOL", "[TOOL", {}},
        ToolText{kMarked, "[[", "[[", {}}, ToolText{kMarked, "[", "[", {}}));

// JSON that looks like a call of what is no tool is content to the byte, unless it stands behind the marker of a call.
INSTANTIATE_TEST_SUITE_P(
    NamesOfNoTool, ToolCallParserTells,
    ::testing::Values(
        ToolText{"llama3",
                 " {\"name\": \"Alice\", \"parameters\": {\"a\": {}}} \n",
                 " {\"name\": \"Alice\", \"parameters\": {\"a\": {}}} \n",
                 {}},
        ToolText{"llama3", "{\"name\":\"Alice\"}", "{\"name\":\"Alice\"}", {}},
        ToolText{"llama3", "{\"parameters\":{},\"name\":\"F\"}", "{\"parameters\":{},\"name\":\"F\"}", {}},
        ToolText{"llama3",
                 "{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"x\",\"parameters\":{}}",
                 "; {\"name\":\"x\",\"parameters\":{}}",
                 {{"f", "{}"}}},
        ToolText{"llama3", "<|python_tag|>{\"name\":\"x\",\"parameters\":{}}", "", {{"x", "{}"}}},
        ToolText{"llama3",
                 "<|python_tag|>{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"x\",\"parameters\":{}}",
                 "",
                 {{"f", "{}"}, {"x", "{}"}}},
        ToolText{"hermes", "<tool_call>{\"name\":\"x\",\"arguments\":{}}</tool_call>", "", {{"x", "{}"}}},
        ToolText{"json",
                 "{\"name\":\"Alice\",\"input\":{\"a\":[]},\"arguments\":{}} more",
                 "{\"name\":\"Alice\",\"input\":{\"a\":[]},\"arguments\":{}} more",
                 {}},
        ToolText{"json",
                 "[{\"name\":\"x\",\"arguments\":\"{}\"}, {\"name\":\"f\",\"arguments\":{}}]",
                 "[{\"name\":\"x\",\"arguments\":\"{}\"}, {\"name\":\"f\",\"arguments\":{}}]",
                 {}},
        ToolText{"json",
                 "[{\"name\":\"f\",\"arguments\":{}}, {\"function\":{\"name\":\"x\",\"arguments\":{}}}]",
                 ", {\"function\":{\"name\":\"x\",\"arguments\":{}}}]",
                 {{"f", "{}"}}},
        ToolText{kFenced, "[{\"name\":\"x\",\"arguments\":{}}]", "[{\"name\":\"x\",\"arguments\":{}}]", {}},
        ToolText{kFenced, "Action: ```json\n[{\"name\":\"x\",\"arguments\":{}}]\n```", "", {{"x", "{}"}}},
        // The marker is for what stands between it and the one behind.
        ToolText{kFenced,
                 "Action: ```json\n{\"name\":\"f\",\"arguments\":{}}\n``` {\"name\":\"x\",\"arguments\":{}}",
                 " {\"name\":\"x\",\"arguments\":{}}",
                 {{"f", "{}"}}},
        ToolText{kMarked, "[TOOL_CALLS] [{\"name\":\"x\",\"arguments\":{}}]", "", {{"x", "{}"}}},
        ToolText{kMarked, "[{\"name\":\"x\",\"arguments\":{}}]", "[{\"name\":\"x\",\"arguments\":{}}]", {}}));

TEST(ToolCallParser, WithoutToolsNoBareObjectIsACall) {
  ToolCallParser parser(*ToolFormatOf("json"), nullptr);
  std::string content;
  std::vector<ToolCallPart> calls;
  parser.Feed("{\"name\":\"f\",\"arguments\":{}}", content, calls);
  EXPECT_EQ(content, "{\"name\":\"f\",\"arguments\":{}}");
  EXPECT_THAT(calls, ::testing::IsEmpty());
}

TEST(ToolCallParser, AnObjectOfNoToolIsToldAsSoonAsItsArgumentsBegin) {
  ToolCallParser parser = ParserOf("llama3");
  std::string content;
  std::vector<ToolCallPart> calls;
  parser.Feed("{\"name\": \"x\", \"parameters\": ", content, calls);
  EXPECT_EQ(content, "");
  parser.Feed("{", content, calls);
  EXPECT_EQ(content, "{\"name\": \"x\", \"parameters\": {");
  parser.Feed("\"a", content, calls);
  EXPECT_EQ(content, "{\"name\": \"x\", \"parameters\": {\"a");
  EXPECT_THAT(calls, ::testing::IsEmpty());
}

TEST(ToolCallParser, ContentIsToldAtOnce) {
  ToolCallParser parser = ParserOf("hermes");
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
  ToolCallParser parser = ParserOf("hermes");
  EXPECT_THAT(PartsOf(parser, "<tool_call>{\"name\": \"f\", \"arguments\": "), ::testing::IsEmpty());
  EXPECT_THAT(PartsOf(parser, "{\"a"), ::testing::ElementsAre("f {\"a"));
  EXPECT_THAT(PartsOf(parser, "\": 1"), ::testing::ElementsAre("\": 1"));
  EXPECT_THAT(PartsOf(parser, "}}\n</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{"),
              ::testing::ElementsAre("}", "g {"));
  EXPECT_THAT(PartsOf(parser, "}}</tool_call>"), ::testing::ElementsAre("}"));
}

TEST(ToolCallParser, CallsOfAListAreToldAsTheyCome) {
  ToolCallParser parser = ParserOf("json");
  EXPECT_THAT(PartsOf(parser, "[{\"name\": \"f\", \"arguments\": "), ::testing::IsEmpty());
  EXPECT_THAT(PartsOf(parser, "{\"a"), ::testing::ElementsAre("f {\"a"));
  EXPECT_THAT(PartsOf(parser, "\": 1}}, {\"function\": {\"name\": \"g\", \"arguments\": {"),
              ::testing::ElementsAre("\": 1}", "g {"));
  EXPECT_THAT(PartsOf(parser, "}}}]"), ::testing::ElementsAre("}"));
}

TEST(ToolCallParser, OfAListOnlyTheFirstCallIsKeptWhereThatIsAsked) {
  ToolCallParser parser = ParserOf("json", /*only_first=*/true);
  EXPECT_THAT(PartsOf(parser, "[{\"name\":\"f\",\"arguments\":{}}, {\"name\":\"g\",\"arguments\":{}}] Done."),
              ::testing::ElementsAre("f {}"));
}

TEST(ToolCallParser, AnyOtherCallIsToldAtItsLastBracket) {
  ToolCallParser parser = ParserOf("hermes");
  EXPECT_THAT(PartsOf(parser, "<tool_call>{\"arguments\":{},\"name\":\"f\""), ::testing::IsEmpty());
  EXPECT_THAT(PartsOf(parser, "}"), ::testing::ElementsAre("f {}"));
  EXPECT_THAT(PartsOf(parser, "<tool_call>{\"name\":\"f\",\"arguments\":\"{}\""), ::testing::IsEmpty());
  EXPECT_THAT(PartsOf(parser, "}"), ::testing::ElementsAre("f {}"));
}

TEST(ToolCallParser, LongTextsTakeTimeInTheirLength) {
  // Each of these would take minutes if what is held were looked through for each character.
  for (const auto& [format, part] : {std::pair("hermes", std::string(" ")),
                                     {"hermes", std::string("<tool_call>")},
                                     {"hermes", std::string("<tool_call>{\"")},
                                     {"json", std::string("[ ")},
                                     {"json", std::string("[{\"")}}) {
    ToolCallParser parser = ParserOf(format);
    std::string text;
    while (text.size() < (size_t{2} << 20)) text += part;
    std::string content;
    std::vector<ToolCallPart> calls;
    for (const char c : text) parser.Feed(absl::string_view(&c, 1), content, calls);
    parser.Finish(content);
    EXPECT_EQ(content, text);
  }
}

}  // namespace
}  // namespace runahead
