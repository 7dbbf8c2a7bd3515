#include "server/tokenizer/jinja/lexer.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/jinja_render.h"

namespace runahead::jinja {
namespace {

using testing::HasSubstr;

TEST(Lexer, StatementsOnLinesOfTheirOwnLeaveNothing) {
  EXPECT_EQ(Rendered("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(Rendered("  {# comment #}\nx"), "x");
  EXPECT_EQ(Rendered("a {% if true %}b{% endif %} c"), "a b c");
  EXPECT_EQ(Rendered("{% if true %}\n\nb{% endif %}"), "\nb") << "one line end goes, not two";
}

TEST(Lexer, OutputsKeepWhatIsAroundThem) {
  EXPECT_EQ(Rendered("  {{ 1 }}\nb"), "  1\nb");
  EXPECT_EQ(Rendered("{% if true %}\n  {{ 1 }}\n{% endif %}"), "  1\n");
}

TEST(Lexer, SignsStripAndKeep) {
  EXPECT_EQ(Rendered("a \n {{- 1 -}} \n b"), "a1b");
  EXPECT_EQ(Rendered("a \n {%- if true -%} \n b {%- endif %} c"), "ab c");
  EXPECT_EQ(Rendered("  {%+ if true +%}\nb{% endif %}"), "  \nb");
  EXPECT_EQ(Rendered("a {#- c -#} b"), "ab");
  EXPECT_EQ(Rendered("a\u00a0\u3000{{- 'b' }}"), "ab") << "white space beyond ASCII goes, too";
  EXPECT_EQ(Rendered("{{-1}} {{ 1 -1 }}"), "1 0");
}

TEST(Lexer, ALineThatBeginsBehindAStrippingTagIsNone) {
  EXPECT_EQ(Rendered("{{ 1 -}}\n  {% if true %}x{% endif %}"), "1x");
  EXPECT_EQ(Rendered("{{ 1 }}  {% if true %}x{% endif %}"), "1  x");
}

TEST(Lexer, LineEndsAreOfOneFormAndTheLastOneGoes) {
  EXPECT_EQ(Rendered("a\r\nb\rc\n"), "a\nb\nc");
  EXPECT_EQ(Rendered("a\n\n"), "a\n");
  EXPECT_EQ(Rendered(""), "");
}

TEST(Lexer, RawIsTextAsItIs) {
  EXPECT_EQ(Rendered("{% raw %}{{ x }}{% if %}{# #}{% endraw %}"), "{{ x }}{% if %}{# #}");
  EXPECT_EQ(Rendered("{%- raw -%} a {%- endraw -%} b"), "ab");
  EXPECT_THAT(Rendered("{% raw %}a"), HasSubstr("raw has no endraw"));
}

TEST(Lexer, StringsHaveEscapes) {
  EXPECT_EQ(Rendered(R"({{ 'a\n\t\\\'\"\x41\u00fc\U0001F600\d' }})"), "a\n\t\\'\"A\u00fc\U0001F600\\d");
  EXPECT_EQ(Rendered(R"({{ "}} %} #}" 'b' }})"), "}} %} #}b");
  EXPECT_EQ(Rendered("{{ 'a\\\nb' }}"), "ab");
  EXPECT_THAT(Rendered(R"({{ '\ud83d' }})"), HasSubstr("this is no character"));
  EXPECT_THAT(Rendered(R"({{ '\N{DASH}' }})"), HasSubstr("this escape is not known"));
}

TEST(Lexer, NumbersHaveTheFormsOfPython) {
  EXPECT_EQ(Rendered("{{ 1_000 }} {{ 1.5e3 }} {{ 2e-1 }} {{ [[1, 2]].0.1 }}"), "1000 1500.0 0.2 2");
  EXPECT_THAT(Rendered("{{ 99999999999999999999 }}"), HasSubstr("the number is too large"));
}

TEST(Lexer, WhatCannotBeReadIsShownWithItsLine) {
  EXPECT_EQ(Rendered("a\n\n{{ 'x }}"), "error: line 3, at `'x }}`: the string has no end");
  EXPECT_THAT(Rendered("{{ a ? b }}"), HasSubstr("line 1, at `? b }}`"));
  EXPECT_THAT(Rendered("{{ ) }}"), HasSubstr("this bracket was not opened"));
  EXPECT_THAT(Rendered("{{ (] }}"), HasSubstr("this bracket was not opened"));
  for (const char* source : {"{{", "{%", "{#", "{{ (", "{{ 'a\\", "{% raw"}) {
    EXPECT_THAT(Rendered(source), HasSubstr("error: line 1")) << source;
  }
}

}  // namespace
}  // namespace runahead::jinja
