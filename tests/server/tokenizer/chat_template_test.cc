#include "server/tokenizer/chat_template.h"

#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/tokenizer/plain_chat.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {
namespace {

using testing::HasSubstr;

ChatTemplate Parsed(std::string_view source) {
  auto parsed = ChatTemplate::Parse(source, "<s>", "</s>");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *std::move(parsed);
}

// A chat whose last message, the assistant's, is to be continued.
Chat Begun(const std::string& content) {
  Chat chat = ChatOf({{"user", "Hi"}, {"assistant", content}});
  chat.continue_final_message = true;
  return chat;
}

std::string Refusal(const ChatTemplate& chat_template, const Chat& chat) {
  const absl::Status status = chat_template.Render(chat).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(ChatTemplate, PlainChatMl) {
  const ChatTemplate chat = Parsed(kPlainTemplate);
  EXPECT_EQ(*chat.Render(ChatOf({{"user", "Hi"}, {"assistant", "Hello"}})),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>assistant\n");
  Chat unprompted = ChatOf({{"user", "Hi"}});
  unprompted.add_generation_prompt = false;
  EXPECT_EQ(*chat.Render(unprompted), "<|im_start|>user\nHi<|im_end|>\n");
}

TEST(ChatTemplate, TheLastMessageIsLeftOpenToBeContinued) {
  const ChatTemplate chat = Parsed(kPlainTemplate);
  const std::string before = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(*chat.Render(Begun("The capital is")), before + "The capital is");
  EXPECT_EQ(*chat.Render(Begun("The capital is ")), before + "The capital is ") << "space at the end is the caller's";
  Chat by_variable = Begun("The capital is");
  by_variable.continue_final_message = std::nullopt;
  by_variable.variables = R"({"continue_final_message": true})";
  EXPECT_EQ(*chat.Render(by_variable), before + "The capital is");
  by_variable.variables = R"({"continue_final_message": false, "add_generation_prompt": false})";
  EXPECT_EQ(*chat.Render(by_variable), before + "The capital is<|im_end|>\n");
}

// transformers finds them in the template's own words, and cuts there.
TEST(ChatTemplate, WordsThatTheTemplateWritesBehindTheLastMessageAreNotTakenForIt) {
  const ChatTemplate chat = Parsed(kPlainTemplate);
  const std::string before = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  for (const std::string content : {"end", "|", "im", "<|im_end|>", "\n>"}) {
    EXPECT_EQ(*chat.Render(Begun(content)), before + content);
  }
}

TEST(ChatTemplate, AMessageThatTheTemplateWritesAnewIsFoundAllTheSame) {
  EXPECT_EQ(*Parsed("<a>{{ messages[-1].content.replace('-', '-') }}</a>").Render(Begun("a-b")), "<a>a-b");
}

TEST(ChatTemplate, WhatCannotBeContinuedIsRefused) {
  const ChatTemplate chat = Parsed(kPlainTemplate);
  EXPECT_THAT(Refusal(chat, Begun("")), HasSubstr("messages[1].content: it is empty"));
  EXPECT_THAT(Refusal(chat, Begun(" \n")), HasSubstr("messages[1].content: it is empty"));
  Chat both = Begun("a");
  both.add_generation_prompt = true;
  EXPECT_THAT(Refusal(chat, both), HasSubstr("continue_final_message: add_generation_prompt is true, too"));
  EXPECT_THAT(
      Refusal(Parsed("{{ messages[-1].content | upper }}"), Begun("secret")),
      testing::AllOf(HasSubstr("continue_final_message: the chat template leaves the last message's content out"),
                     testing::Not(HasSubstr("secret"))));
}

TEST(ChatTemplate, TheLastMessageIsFoundInLinearTime) {
  const ChatTemplate chat = Parsed("{{ messages[-1].content[1:] ~ messages[-1].content }}x");
  Chat begun = Begun(std::string(1 << 20, 'a') + "b");
  const auto text = chat.Render(begun);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->size(), size_t{2} * ((1 << 20) + 1) - 1);
}

TEST(ChatTemplate, ArgumentsOfCallsThatAreJsonAsATextAreTheObjectThatTheyHold) {
  const ChatTemplate chat = Parsed(
      "{% for c in messages[0].tool_calls %}{% set f = c.function or c %}{{ f.arguments | tojson }}"
      "{% for name, value in f.arguments.items() %}{{ name }}={{ value }};{% endfor %}{% endfor %}");
  ChatMessage message{"assistant", ""};
  const auto rendered = [&](const std::string& calls) {
    message.tool_calls = calls;
    return *chat.Render(ChatOf({message}));
  };
  const std::string wanted = R"({"city": "Z\u00fcrich \"H\"", "days": [2, null]}city=Zürich "H";days=[2, None];)";
  const std::string object = R"({"city": "Zürich \"H\"", "days": [2, null]})";
  const std::string text = R"("{\"days\": [2, null]}")";
  const std::string as_object = rendered(R"([{"function": {"name": "f", "arguments": )" + object + "}}]");
  EXPECT_EQ(as_object, rendered(R"([{"function": {"name": "f", "arguments": "{\"city\": \"Zürich \\\"H\\\"\", )"
                                R"(\"days\": [2, null]}"}}])"));
  EXPECT_EQ(rendered(R"([{"name": "f", "arguments": )" + text + "}]"), R"({"days": [2, null]}days=[2, None];)");
  EXPECT_EQ(rendered(R"([{"function": {"arguments": "{}"}}])"), "{}");
}

// One call with these arguments, which are JSON.
Chat Calling(const std::string& arguments) {
  ChatMessage message{"assistant", ""};
  message.tool_calls = absl::StrCat(R"([{"function": {"name": "f", "arguments": )", arguments, "}}]");
  return ChatOf({message});
}

constexpr const char* kCompact = R"("{\"b\":\"x\",\"a\": [1,null]}")";
constexpr const char* kObject = R"({"b": "x", "a": [1, null]})";

std::string OfArguments(const std::string& expressions, const std::string& arguments) {
  const auto text = Parsed("{% set a = messages[0].tool_calls[0].function.arguments %}" + expressions);
  const auto rendered = text.Render(Calling(arguments));
  return rendered.ok() ? *rendered : std::string(rendered.status().message());
}

TEST(ChatTemplate, ArgumentsThatAreWrittenAreTheTextThatTheyCameAs) {
  const std::string text = R"({"b":"x","a": [1,null]})";
  for (const char* form :
       {"{{ a }}", "{{ '' ~ a }}", "{{ '' + a }}", "{{ a + '' }}", "{{ a | string }}", "{{ a | trim }}",
        "{{ [a] | join }}", "{{ a.strip() }}", "{{ a[:] }}", "{% set x = a %}{{ x or '' }}"}) {
    EXPECT_EQ(OfArguments(form, kCompact), text) << form;
  }
  EXPECT_EQ(OfArguments("{{ a == '{}' }}{{ a != '{}' }}{{ '{}' == a }}", R"("{}")"), "TrueFalseTrue");
  EXPECT_EQ(OfArguments("{{ a == '{}' }}{{ a[0] }}{{ a[1:-1] }}{{ a.startswith('{') }}", R"("{\"k\": 1}")"),
            R"(False{"k": 1True)");
}

TEST(ChatTemplate, ArgumentsThatAreTakenApartAskedAboutOrMadeJsonAreTheObject) {
  for (const char* arguments : {kCompact, kObject}) {
    EXPECT_EQ(OfArguments("{{ a | tojson }}", arguments), kObject);
    EXPECT_EQ(OfArguments("{{ messages[0].tool_calls[0].function | tojson }}", arguments),
              absl::StrCat(R"({"name": "f", "arguments": )", kObject, "}"));
    EXPECT_EQ(OfArguments("{{ a.b }}{{ a['a'] }}{{ a.get('b') }}{% for k in a %}{{ k }}{% endfor %}", arguments),
              "x[1, None]xba");
    EXPECT_EQ(OfArguments("{% for k, v in a | dictsort %}{{ k }}={{ v }};{% endfor %}", arguments), "a=[1, None];b=x;");
    EXPECT_EQ(OfArguments("{{ a is mapping }}{{ a is string }}{{ 'b' in a }}{{ a | length }}", arguments),
              "TrueFalseTrue2");
  }
}

// Else as transformers writes them, which has no sum of an object and a text.
TEST(ChatTemplate, ArgumentsThatCameAsAnObjectAreJsonWhereATextIsAddedToThem) {
  EXPECT_EQ(OfArguments("{{ '<' + a + '>' }}", kObject), absl::StrCat("<", kObject, ">"));
  EXPECT_EQ(OfArguments("{{ a }}", kObject), "{'b': 'x', 'a': [1, None]}");
  EXPECT_THAT(OfArguments("{{ 'x' + messages[0].tool_calls[0].function }}", kObject),
              HasSubstr("a string + a dict has no meaning here"));
}

TEST(ChatTemplate, ArgumentsThatHoldNoObjectAreRefusedByName) {
  const ChatTemplate chat = Parsed("{{ messages[1].tool_calls[0] }}");
  ChatMessage call{"assistant", ""};
  for (const char* arguments : {R"("")", R"("secret")", R"("[1]")", R"("3")", R"("null")", R"("{\"secret\"")",
                                R"("{\"secret\": 1, \"secret\": 2}")", R"("{\"secret\": 18446744073709551616}")", "[1]",
                                "7", "true", "null", R"({"secret": 18446744073709551616})"}) {
    call.tool_calls =
        absl::StrCat(R"([{"function": {"arguments": {}}}, {"function": {"name": "f", "arguments": )", arguments, "}}]");
    const std::string refusal = Refusal(chat, ChatOf({{"user", "a"}, call}));
    EXPECT_THAT(refusal, testing::StartsWith("messages[1].tool_calls")) << arguments;
    EXPECT_THAT(refusal, testing::Not(HasSubstr("secret")));
  }
  call.tool_calls = R"([{"function": {"arguments": {}}}, {"function": {"name": "f", "arguments": "secret"}}])";
  EXPECT_EQ(Refusal(chat, ChatOf({{"user", "a"}, call})),
            "messages[1].tool_calls[1].function.arguments: the text is not JSON at byte 1");
  for (const char* arguments : {"[1]", "7", "false", "null"}) {
    EXPECT_THAT(Refusal(chat, ChatOf({{"user", "a"}, Calling(arguments).messages[0]})),
                testing::StartsWith("messages[1].tool_calls[0].function.arguments: it is no object"))
        << arguments;
  }
  EXPECT_EQ(Refusal(chat, ChatOf({{"user", "a"}, Calling(R"("")").messages[0]})),
            "messages[1].tool_calls[0].function.arguments: the text is empty; a call without arguments has {}");
}

TEST(ChatTemplate, TheDefaultSystemMessageComesFromTheTemplate) {
  const ChatTemplate chat = Parsed(SyntheticChatTemplate());
  EXPECT_EQ(*chat.Render(ChatOf({{"user", "Hi"}})),
            "<|im_start|>system\nYou are a synthetic model.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(*chat.Render(ChatOf({{"system", "Be brief."}, {"user", "Hi"}})),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, TokensAreThereOnlyWhereTheModelHasThem) {
  EXPECT_EQ(*Parsed("{{ bos_token }}{{ eos_token }}").Render(ChatOf({{"user", "a"}})), "<s></s>");
  const auto none = ChatTemplate::Parse("{{ bos_token is defined }}{{ eos_token }}", "", "");
  EXPECT_EQ(*none->Render(ChatOf({{"user", "a"}})), "False");
}

TEST(ChatTemplate, WhatAMessageLacksIsAbsent) {
  const ChatTemplate chat = Parsed(
      "{% for m in messages %}{{ m.name is defined }}{{ m.tool_call_id is defined }}{{ 'tool_calls' in m }}"
      "{{ 'reasoning_content' in m }};{% endfor %}");
  ChatMessage all{"assistant", "", "n", "i", "r", "[]"};
  EXPECT_EQ(*chat.Render(ChatOf({{"user", "a"}, all})), "FalseFalseFalseFalse;TrueTrueTrueTrue;");
}

TEST(ChatTemplate, ToolsAndVariablesAreJson) {
  const ChatTemplate chat = Parsed("{{ tools[0].name if tools else tools }} {{ x is defined }} {{ x }}{{ bos_token }}");
  Chat given = ChatOf({{"user", "a"}});
  EXPECT_EQ(*chat.Render(given), "None False <s>");
  given.tools = R"([{"name": "clock"}])";
  given.variables = R"({"x": false})";
  EXPECT_EQ(*chat.Render(given), "clock True False<s>");
  given.variables = "[";
  EXPECT_THAT(Refusal(chat, given), HasSubstr("template_variables: it is not JSON"));
  given.variables = "[]";
  EXPECT_THAT(Refusal(chat, given), HasSubstr("template_variables: it is no JSON object"));
  given.tools = "{";
  EXPECT_THAT(Refusal(chat, given), HasSubstr("tools: it is not JSON"));
  ChatMessage call{"assistant", ""};
  call.tool_calls = "x";
  EXPECT_THAT(Refusal(chat, ChatOf({{"user", "a"}, call})), HasSubstr("messages[1].tool_calls: it is not JSON"));
}

TEST(ChatTemplate, VariablesThatComeFromElsewhereAreRefusedByName) {
  const ChatTemplate chat = Parsed("{{ documents }}");
  Chat given = ChatOf({{"user", "a"}});
  for (const std::string name : {"messages", "tools", "bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                                 "cls_token", "mask_token", "additional_special_tokens"}) {
    given.variables = absl::StrCat("{\"x\": 1, \"", name, "\": null}");
    EXPECT_THAT(Refusal(chat, given), testing::StartsWith("template_variables." + name + ": it cannot be set here"));
  }
  for (const std::string name : {"add_generation_prompt", "continue_final_message"}) {
    for (const std::string value : {"null", "0", "\"false\"", "[]"}) {
      given.variables = absl::StrCat("{\"", name, "\": ", value, "}");
      EXPECT_THAT(Refusal(chat, given), testing::StartsWith("template_variables." + name + ": it is ")) << value;
    }
  }
  given.add_generation_prompt = false;
  given.variables = R"({"add_generation_prompt": false})";
  EXPECT_THAT(Refusal(chat, given), HasSubstr("the chat's field of that name is set, too"));
  given.variables = R"({"documents": ["a"]})";
  EXPECT_EQ(*chat.Render(given), "['a']") << "which has no field";
}

TEST(ChatTemplate, TheTimeIsTheCallers) {
  Chat chat = ChatOf({{"user", "a"}});
  chat.now = absl::FromUnixSeconds(86400);
  EXPECT_EQ(*Parsed("{{ strftime_now('%d %b %Y') }}").Render(chat), "02 Jan 1970");
}

TEST(ChatTemplate, WhatIsNotUnderstoodIsShownWithItsPlace) {
  const auto refusal = [](std::string_view source) {
    const absl::Status status = ChatTemplate::Parse(source, "", "").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << source;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal("\n{% extends 'x' %}"), HasSubstr("line 2, at `{% extends 'x' %}`"));
  EXPECT_THAT(refusal("a\xff"), HasSubstr("it is not UTF-8 at byte 1"));
  EXPECT_THAT(refusal("{% \x1b[31m %}"), HasSubstr("line 1, at `\\x1b[31m %}`: "));
}

TEST(ChatTemplate, MessagesAreChecked) {
  const ChatTemplate chat = Parsed(kPlainTemplate);
  EXPECT_THAT(Refusal(chat, ChatOf({})), HasSubstr("at least one message"));
  EXPECT_THAT(Refusal(chat, ChatOf({{"user", "a"}, {"", "b"}})), HasSubstr("messages[1].role"));
  EXPECT_TRUE(chat.Render(ChatOf({{"user", ""}})).ok());
}

TEST(ChatTemplate, WhatTheTemplateComplainsAboutNamesTheMessages) {
  const ChatTemplate chat = Parsed("{{ raise_exception('roles alternate, not ' ~ messages[0].content) }}");
  EXPECT_EQ(Refusal(chat, ChatOf({{"user", "secret"}})),
            "messages: they cannot be rendered: the chat template says: roles alternate, not ...; send the prompt as "
            "text, or as token ids");
  EXPECT_THAT(Refusal(Parsed("{{ messages[3].content }}"), ChatOf({{"user", "secret"}})),
              HasSubstr("messages: they cannot"));
}

TEST(ChatTemplate, WhatTheTemplateComplainsAboutOfToolsNamesThem) {
  const ChatTemplate chat = Parsed(
      "{{ raise_exception('no') if messages[0].content == 'bad' }}"
      "{{ raise_exception('no tools') if tools }}{{ messages[0].content }}");
  Chat given = ChatOf({{"user", "good"}});
  given.tools = R"([{"parameters":{}}])";
  EXPECT_THAT(Refusal(chat, given), testing::StartsWith("tools: they cannot be rendered: "));
  given.messages[0].content = "bad";
  EXPECT_THAT(Refusal(chat, given), testing::StartsWith("messages: they cannot be rendered: "));
}

constexpr const char* kToolsWithout[] = {
    R"([{"function": {"name": "f"}}])",
    R"([{"function": {"name": "f", "parameters": null}}])",
    R"([{"function": {"name": "f", "parameters": true}}])",
    R"([{"function": {"name": "f", "parameters": {}}}])",
    R"([{"function": {"name": "f", "parameters": {"type": "object"}}}])",
    R"([{"function": {"name": "f", "parameters": {"$ref": "#/$defs/a", "properties": null}}}])",
    R"([{"function": {"name": "f", "parameters": {"anyOf": [{"type": "object"}]}}}])"};

TEST(ChatTemplate, OneThatGoesThroughThePropertiesOfToolsFindsSome) {
  std::ifstream in("tests/golden/templates/command_r.jinja");
  const std::string source(std::istreambuf_iterator<char>(in), {});
  const auto command_r = ChatTemplate::Parse(source, "<s>", "</s>");
  ASSERT_TRUE(command_r.ok()) << command_r.status();
  for (const char* tools : kToolsWithout) {
    Chat given = ChatOf({{"user", "hi"}});
    given.tools = tools;
    const absl::StatusOr<std::string> text = command_r->Render(given);
    ASSERT_TRUE(text.ok()) << text.status() << tools;
    EXPECT_THAT(*text, HasSubstr("def f() -> List[Dict]:")) << tools;
  }
}

// A large list of tools may take long in each.
TEST(ChatTemplate, WhoEndsIsAskedBetweenTheRenderingsOfAFailure) {
  const ChatTemplate chat = Parsed("{{ raise_exception('no') }}");
  Chat given = ChatOf({{"user", "hi"}});
  given.tools = R"([{"function": {"name": "f"}}])";
  int asked = 0;
  const auto all = chat.Render(given, [&] {
    ++asked;
    return absl::OkStatus();
  });
  EXPECT_THAT(std::string(all.status().message()), testing::StartsWith("messages: they cannot be rendered: "));
  // Before the chat as it came and behind it, behind the one with properties, and both of the one without tools.
  EXPECT_EQ(asked, 5);
  for (int end = 1; end <= asked; ++end) {
    int left = end;
    const auto ended = chat.Render(given, [&] { return --left > 0 ? absl::OkStatus() : absl::CancelledError("gone"); });
    EXPECT_EQ(ended.status(), absl::CancelledError("gone")) << end;
    EXPECT_EQ(left, 0) << "it went on";
  }
}

TEST(ChatTemplate, AMessageIsContinuedBehindToolsThatGotProperties) {
  const ChatTemplate chat = Parsed(
      "{% for t in tools %}{{ t.function.parameters.properties.keys() | list }}{% endfor %}"
      "{% for m in messages %}<{{ m.content }}>{% endfor %}");
  Chat given = Begun("The capital is");
  given.tools = R"([{"function": {"name": "f"}}])";
  const absl::StatusOr<std::string> text = chat.Render(given);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "[]<Hi><The capital is");
}

TEST(ChatTemplate, AnyOtherHasToolsAsTheyCame) {
  const ChatTemplate chat =
      Parsed("{% for t in tools %}{{ 'properties' in (t.function.parameters or {}) }}{% endfor %}");
  Chat given = ChatOf({{"user", "hi"}});
  given.tools = R"([{"function": {"name": "f", "parameters": {}}}, {"function": {"name": "g"}}])";
  const absl::StatusOr<std::string> text = chat.Render(given);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "FalseFalse");
}

TEST(ChatTemplate, JsonOfRequestsIsChecked) {
  EXPECT_TRUE(CheckJsonArray(R"([{"a": 1}])").ok());
  EXPECT_THAT(std::string(CheckJsonArray("{}").message()), HasSubstr("it is a dict, not a JSON array"));
  EXPECT_THAT(std::string(CheckJsonArray("[").message()), HasSubstr("it is not JSON at byte"));
  EXPECT_TRUE(CheckJsonObject("{}").ok());
  EXPECT_THAT(std::string(CheckJsonObject("1").message()), HasSubstr("not a JSON object"));
}

// Templates in the manner of models that also see images. Of a text they write an empty turn.
constexpr const char* kInParts[] = {
    "{% for m in messages %}<{{ m['role'] }}>{% for part in m['content'] %}{% if part['type'] == 'text' %}"
    "{{ part['text'] }}{% endif %}{% endfor %}</>{% endfor %}",
    "{% for m in messages %}<{{ m.role }}>{{ m.content[0]['text'] }}</>{% endfor %}",
    "{% macro shown(content) %}{% for part in content | selectattr('type', 'equalto', 'text') %}{{ part.text }}"
    "{% endfor %}{% endmacro %}"
    "{% for m in messages %}{% set c = m.content %}<{{ m.role }}>{{ shown(c) }}</>{% endfor %}"};

TEST(ChatTemplate, ContentIsInPartsWhereTheTemplateReadsParts) {
  Chat given =
      ChatOf({{"system", "Be brief."}, {"user", "Who are you?"}, {"assistant", "A model."}, {"user", "Really?"}});
  for (const char* source : kInParts) {
    EXPECT_EQ(*Parsed(source).Render(given),
              "<system>Be brief.</><user>Who are you?</><assistant>A model.</><user>Really?</>")
        << source;
  }
  given = Begun("The capital is");
  EXPECT_EQ(*Parsed(kInParts[0]).Render(given), "<user>Hi</><assistant>The capital is");
  EXPECT_EQ(*Parsed(kInParts[1]).Render(ChatOf({{"user", ""}})), "<user></>");
}

TEST(ChatTemplate, ContentIsATextWhereTheTemplateReadsBoth) {
  EXPECT_EQ(*Parsed("{% set c = messages[0].content %}{% if c is string %}text {{ c }}{% else %}{% for p in c %}"
                    "part {{ p.text }}{% endfor %}{% endif %}")
                 .Render(ChatOf({{"user", "Hi"}})),
            "text Hi");
  EXPECT_EQ(*Parsed("{% for c in messages[0].content %}{{ c }}{% endfor %}").Render(ChatOf({{"user", "Hi"}})), "Hi");
}

TEST(ChatTemplate, EachRolesContentIsInTheFormThatTheTemplateReads) {
  const ChatTemplate chat = Parsed(
      "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %};"
      "{% endfor %}");
  EXPECT_EQ(*chat.Render(ChatOf({{"system", "Be brief."}, {"user", "Hi"}})), "Be brief.;Hi;");
}

TEST(ChatTemplate, SaysWhatItLeavesOut) {
  EXPECT_THAT(Parsed("{{ messages }}{{ tools }}{{ documents }}").LeftOut(), testing::IsEmpty());
  EXPECT_THAT(Parsed(kPlainTemplate).LeftOut(),
              testing::ElementsAre("reasoning of earlier turns", "reasoning of the turn that goes on",
                                   "names of messages", "documents"))
      << "tools and calls are told in words";
  EXPECT_THAT(
      Parsed("{% if messages[0].role != 'user' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}")
          .LeftOut(),
      testing::Not(testing::Contains("system messages")))
      << "what is refused is not left out";
}

}  // namespace
}  // namespace runahead
