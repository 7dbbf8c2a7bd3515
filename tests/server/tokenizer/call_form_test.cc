#include "server/tokenizer/call_form.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "server/tokenizer/chat_template.h"
#include "tests/testing/tokenizer_json.h"

namespace runahead {
namespace {

// Every byte is a token; two markers are control tokens, one is not.
std::shared_ptr<const Tokenizer> BytesAndMarkers() {
  std::string vocabulary;
  for (int byte = 0x21; byte < 0x7f; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    const std::string escaped = one == "\"" || one == "\\" ? "\\" + one : one;
    vocabulary += "\"" + escaped + "\": " + std::to_string(byte) + ", ";
  }
  const auto file = ModelOfTokenizerJson(
      R"({"model": {"type": "BPE", "vocab": {)" + vocabulary +
      R"("Ġ": 0, "Ċ": 1, "[TOOL_CALLS]": 2, "</s>": 3, "<|tool_call|>": 4}, "merges": []}, "added_tokens": [
          {"id": 2, "content": "[TOOL_CALLS]", "special": true}, {"id": 3, "content": "</s>", "special": true},
          {"id": 4, "content": "<|tool_call|>", "special": false}],
          "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}})");
  EXPECT_TRUE(file.ok()) << file.status();
  auto tokenizer = Tokenizer::FromModel(**file);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// Of a template that writes tools before each message, and a call so; `f` and `call` stand for it.
std::string FormWhere(const std::string& calls, const std::string& words = "") {
  const std::string source =
      "{{ tools | tojson if tools }}{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}"
      "{% set call = m.tool_calls[0] %}{% set f = call.function %}" +
      calls + "{% else %}{{ m.content }}{% endif %}</s>\n{% endfor %}";
  const auto parsed = ChatTemplate::Parse(source, "", "</s>");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed->ToolFormat(*BytesAndMarkers(), words);
}

TEST(CallForm, IsNamedWhereTheDoorKnowsIt) {
  EXPECT_EQ(FormWhere("<tool_call>\n{{ f | tojson }}\n</tool_call>"), "hermes");
  EXPECT_EQ(FormWhere("Well.\n<tool_call>{{ f | tojson }}"), "hermes");
  EXPECT_EQ(FormWhere("<|python_tag|>{{ f | tojson }}"), "llama3");
  EXPECT_EQ(FormWhere(R"({"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}})"), "llama3");
}

TEST(CallForm, OfAnyOtherJsonIsAnExample) {
  EXPECT_EQ(FormWhere("{{ f | tojson }}"), R"(json {"name": "NAME", "arguments": {}})");
  EXPECT_EQ(FormWhere("{{ [f] | tojson }}"), R"(json [{"name": "NAME", "arguments": {}}])");
  EXPECT_EQ(FormWhere("Action: ```json\n{{ [f] | tojson(indent=4) }}\n```"),
            "json Action: ```json\n[\n    {\"name\": \"NAME\", \"arguments\": {}}\n]\n```");
  EXPECT_EQ(FormWhere(R"({"tool_name": "{{ f.name }}", "parameters": {{ f.arguments }}})"),
            R"(json {"tool_name": "NAME", "parameters": {}})");
  EXPECT_EQ(FormWhere(R"(<tool_call>{"name": "{{ f.name }}", "input": {{ f.arguments }}}</tool_call>)"),
            R"(json <tool_call>{"name": "NAME", "input": {}}</tool_call>)");
  EXPECT_EQ(FormWhere("{{ m.tool_calls | tojson }}"),
            R"(json [{"type": "function", "function": {"name": "NAME", "arguments": {}}}])");
  EXPECT_EQ(FormWhere(R"({"function": {{ f | tojson }}})"), R"(json {"function": {"name": "NAME", "arguments": {}}})");
}

TEST(CallForm, HasWhatAnswersShowOfAMarker) {
  EXPECT_EQ(FormWhere("[TOOL_CALLS][{{ f | tojson }}]"), R"(json [{"name": "NAME", "arguments": {}}])");
  EXPECT_EQ(FormWhere("<|tool_call|>[{{ f | tojson }}]"), R"(json <|tool_call|>[{"name": "NAME", "arguments": {}}])");
  // Above what is a marker.
  EXPECT_EQ(FormWhere(std::string(80, '-') + "[{{ f | tojson }}]"), R"(json [{"name": "NAME", "arguments": {}}])");
}

TEST(CallForm, IsUnknownWhereACallIsNoJsonOfItsOwn) {
  for (const char* calls :
       {"[{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}{% endfor %})]",
        "<tool_call>\n<function={{ f.name }}>{{ f.arguments }}</function></tool_call>",
        "{{ f.name }}\n{{ f.arguments | tojson }}", R"({"calls": [{{ f | tojson }}]})",
        R"({"name": {{ f.arguments | tojson }}})", R"({"name": "{{ f.name }}", "arguments": {"{{ f.arguments }})"}) {
    EXPECT_EQ(FormWhere(calls, "hermes"), "") << calls;
  }
}

TEST(CallForm, IsWhatTheSourceSaysWhereNoCallIsWritten) {
  EXPECT_EQ(FormWhere("", "hermes"), "hermes");
  EXPECT_EQ(FormWhere("{{ raise_exception('no') }}", "llama3"), "llama3");
  EXPECT_EQ(FormWhere("{{ f.name }}"), "json");
  EXPECT_EQ(FormWhere("{{ raise_exception('no') }}"), "json");
}

TEST(CallForm, OfATemplateThatKnowsNoToolsIsThatOfTheWords) {
  const auto parsed = ChatTemplate::Parse("{{ messages[-1].content }}", "", "");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->ToolFormat(*BytesAndMarkers(), ""), "hermes");
}

}  // namespace
}  // namespace runahead
