#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/tokenizer/jinja/parser.h"
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

TEST(Lexer, RawIsRefused) {
  EXPECT_THAT(Rendered("{% raw %}{{ x }}{% endraw %}"), HasSubstr("the statement 'raw' is not known here"));
}

TEST(Lexer, StringsHaveEscapes) {
  EXPECT_EQ(Rendered(R"({{ 'a\n\t\\\'\"\u00fc\U0001F600' }})"), "a\n\t\\'\"\u00fc\U0001F600");
  EXPECT_EQ(Rendered(R"({{ "}} %} #}" 'b' }})"), "}} %} #}b");
  for (const char* escape : {"\\ud83d", "\\N{DASH}", "\\x41", "\\d", "\\\n"}) {
    EXPECT_THAT(Rendered(std::string("{{ '") + escape + "' }}"), HasSubstr("an escape in the string is not known"));
  }
}

TEST(Lexer, NumbersAreDecimal) {
  EXPECT_EQ(Rendered("{{ 1000 }} {{ 1.5 }} {{ 2e1 }} {{ 1.5e3 }}"), "1000 1.5 20.0 1500.0");
  for (const char* source : {"{{ 1_000 }}", "{{ 1.2.3 }}", "{{ 2e-1 }}", "{{ 1e999 }}", "{{ 0x10 }}", "{{ x.0 }}"}) {
    EXPECT_THAT(Rendered(source), HasSubstr("error: line 1")) << source;
  }
  EXPECT_THAT(Rendered("{{ 99999999999999999999 }}"), HasSubstr("the number is too large"));
}

TEST(Lexer, WhatCannotBeReadIsShownWithItsLine) {
  EXPECT_EQ(Rendered("a\n\n{{ 'x }}"), "error: line 3, at `'x }}`: the string has no end");
  EXPECT_THAT(Rendered("{{ a ? b }}"), HasSubstr("line 1, at `? b }}`"));
  EXPECT_EQ(Rendered("{{ ) }}"), "error: line 1, at `) }}`: expected an expression");
  EXPECT_EQ(Rendered("{{ (1] }}"), "error: line 1, at `] }}`: expected )");
  EXPECT_EQ(Rendered("a\n{{ (1\n"), "error: line 2, at `{{ (1`: it has no end");
  for (const char* source : {"{{", "{%", "{#", "{{ (", "{{ 'a\\", "{% raw"}) {
    EXPECT_THAT(Rendered(source), HasSubstr("error: line 1")) << source;
  }
}

}  // namespace
}  // namespace runahead::jinja
