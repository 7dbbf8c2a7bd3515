#include "server/tokenizer/jinja/template.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/jinja_render.h"

namespace runahead::jinja {
namespace {

using testing::HasSubstr;

TEST(Template, OperatorsBindAsInPython) {
  EXPECT_EQ(Rendered("{{ 1 + 2 * 3 - 4 % 3 }} {{ (1 + 2) * 3 }} {{ 7 - 2 - 1 }}"), "6 9 4");
  EXPECT_EQ(Rendered("{{ -7 % 3 }} {{ 7 % -3 }} {{ -1.5 }} {{ 1 - -2 }}"), "2 -2 -1.5 3");
  EXPECT_EQ(Rendered("{{ 'a' ~ 1 + 2 ~ none ~ true }}"), "a12NoneTrue") << "~ binds more than +";
  EXPECT_EQ(Rendered("{{ 1 ~ 2 * 3 }}"), "16");
  EXPECT_EQ(Rendered("{{ not true or true and false }} {{ 1 < 2 }} {{ 2 >= 2 and 2 <= 1 }} {{ not 1 in [2] }}"),
            "False True False True");
  EXPECT_THAT(Rendered("{{ 1 < 2 < 3 }}"), HasSubstr("comparisons in a row are not known here"));
  EXPECT_EQ(Rendered("{{ 0 or 'x' }} {{ 1 and '' }}| {{ 'a' if 0 else 'b' }} {{ 'a' if 0 }}"), "x | b ");
  EXPECT_EQ(Rendered("{{ 'ab' * 2 }} {{ [1] + [2] }} {{ 1 == 1.0 }} {{ true == 1 }} {{ '1' == 1 }}"),
            "abab [1, 2] True True False");
  EXPECT_EQ(Rendered("{{ -1 | string | length }} {{ 'a' ~ 'b' | upper }}"), "2 aB");
}

TEST(Template, NumbersStayWithinTheirBounds) {
  for (const char* source :
       {"{{ 9223372036854775807 + 1 }}", "{{ 3037000500 * 3037000500 }}", "{{ -(-9223372036854775807 - 1) }}"}) {
    EXPECT_THAT(Rendered(source), HasSubstr("beyond 64 bits")) << source;
  }
  EXPECT_EQ(Rendered("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
  EXPECT_THAT(Rendered("{{ 1 % 0 }}"), HasSubstr("a division by 0"));
}

TEST(Template, UndefinedRendersAsNothingAndHasNoMembers) {
  EXPECT_EQ(Rendered("[{{ x }}{{ x | length }}{% for i in x %}{% endfor %}{{ 'y' if x }}{{ x ~ 'z' }}]"), "[0z]");
  EXPECT_EQ(Rendered("{{ m.x is defined }} {{ m['x'] is defined }} {{ m.x }} {{ none.x is defined }}", R"({"m": {}})"),
            "False False  False");
  EXPECT_EQ(Rendered("a\n{{ x.y }}"), "error: line 2, at `x.y }}`: there is no y of it: 'x' is undefined");
  EXPECT_THAT(Rendered("{{ m.x.y }}", R"({"m": {}})"), HasSubstr("'x' is undefined"));
  EXPECT_THAT(Rendered("{{ x + 'a' }}"), HasSubstr("'x' is undefined"));
  EXPECT_THAT(Rendered("{{ x() }}"), HasSubstr("it cannot be called: 'x' is undefined"));
}

TEST(Template, LoopsKnowWhereTheyAre) {
  EXPECT_EQ(Rendered("{% for c in 'abc' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ "
                     "loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}"),
            "103TrueFalse3b 212FalseFalse3ac 321FalseTrue3b ");
  EXPECT_EQ(Rendered("{% for i in range(4) if i % 2 == 1 %}{{ i }}/{{ loop.length }} {% endfor %}"), "1/2 3/2 ");
  EXPECT_EQ(Rendered("{% for i in [] %}x{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(
      Rendered("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif "
               "%}{{ i }}{% endfor %}"),
      "02");
  EXPECT_EQ(Rendered("{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}{% for k in m %}{{ k }}{% endfor %}",
                     R"({"m": {"b": 1, "a": 2}})"),
            "b=1;a=2;ba");
  EXPECT_EQ(Rendered("{% for i in [1, 2] %}{% for j in [1, 2] %}{{ i }}{{ j }}{% break %}{% endfor %};{% endfor %}"),
            "11;21;");
  EXPECT_THAT(Rendered("{% for a, b in [[1]] %}{% endfor %}"), HasSubstr("1 values for 2 names"));
  EXPECT_THAT(Rendered("{% for a in 1 %}{% endfor %}"), HasSubstr("an integer has no items"));
}

TEST(Template, WhatALoopSetsEndsWithTheRound) {
  EXPECT_EQ(Rendered("{% set x = 0 %}{% for i in [1, 2] %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}"), "01020");
  EXPECT_EQ(
      Rendered("{% set ns = namespace(x=0) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}"),
      "3");
  EXPECT_EQ(Rendered("{% if true %}{% set x = 1 %}{% endif %}{{ x }}"), "1");
  EXPECT_THAT(Rendered("{% set m.x = 1 %}", R"({"m": {}})"), HasSubstr("only members of namespaces can be set"));
}

TEST(Template, BlocksAreTexts) {
  EXPECT_EQ(Rendered("{% set x %} a{{ 1 }} {% endset %}[{{ x }}]{{ x is string }}"), "[ a1 ]True");
  EXPECT_EQ(Rendered("{% set x | trim | upper %} a {% endset %}[{{ x }}]"), "[A]");
  EXPECT_EQ(Rendered("{% filter upper | replace('A', 'b') %}a{{ 'c' }}{% endfilter %}"), "bC");
  EXPECT_EQ(Rendered("{% generation %}a{% set x = 1 %}{% endgeneration %}{{ x }}"), "a");
  EXPECT_EQ(Rendered("{% set a, b = 1, [2] %}{{ a }}{{ b }}"), "1[2]");
}

TEST(Template, MacrosHaveDefaultsAndSeeWhatIsAroundThem) {
  EXPECT_EQ(Rendered("{% macro f(a, b=a ~ '!', c=none) %}{{ a }}{{ b }}{{ c }}{{ g }}{% endmacro %}{% set g = 1 %}"
                     "{{ f('x') }} {{ f('x', c=2) }} {{ f(b=1, a=2) }} {{ f() }}"),
            "xx!None1 xx!21 21None1 !None1");
  EXPECT_EQ(Rendered("{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}"), "3210");
  EXPECT_EQ(Rendered("{% macro f() %}[{{ i }}]{% endmacro %}{% for i in [1] %}{{ f() }}{% endfor %}"), "[]")
      << "what is around the call is not around the macro";
  EXPECT_THAT(Rendered("{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}"), HasSubstr("takes fewer arguments"));
  EXPECT_THAT(Rendered("{% macro f(a) %}{% endmacro %}{{ f(b=2) }}"), HasSubstr("takes no argument 'b'"));
}

TEST(Template, SlicesAreByCharacter) {
  EXPECT_EQ(Rendered("{{ x[1] }}{{ x[-1] }}{{ x[1:3] }}{{ x[::-1] }}{{ x[:-1] }}{{ x[9:] }}|{{ x[9] }}|{{ x[::2] }}",
                     R"({"x": "aüb你"})"),
            "ü你üb你büaaüb||ab");
  EXPECT_EQ(Rendered("{{ l[1:] }}{{ l[:-1] }}{{ l[::-2] }}{{ (1, 2, 3)[:1] }}{{ l[none:1] }}", R"({"l": [1, 2, 3]})"),
            "[2, 3][1, 2][3, 1](1,)[1]");
  EXPECT_EQ(Rendered("{{ [1, 2][::9223372036854775807] }}{{ [1, 2][::-9223372036854775807] }}"), "[1][2]");
  EXPECT_THAT(Rendered("{{ [1][::0] }}"), HasSubstr("step of a slice is 0"));
}

TEST(Template, ValuesAreShownAsPythonShowsThem) {
  EXPECT_EQ(Rendered("{{ [1, 2.0, none, true, 'a\\'b', 'a\"b\\n', {'k': (1,)}] }}"),
            R"([1, 2.0, None, True, "a'b", 'a"b\n', {'k': (1,)}])");
  EXPECT_EQ(Rendered("{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 0.30000000000000004 }} {{ 1e22 }}"),
            "1e+16 1000000000000000.0 0.0001 1e-05 0.30000000000000004 1e+22");
  EXPECT_THAT(Rendered("{{ range }}"), HasSubstr("it has no form as text or JSON: it is a function"));
}

TEST(Template, MembersComeBeforeItemsOnlyWithADot) {
  EXPECT_EQ(Rendered("{{ m['items'] }} {{ m.get('items') }} {{ m.items() | list | length }}", R"({"m": {"items": 1}})"),
            "1 1 1");
  EXPECT_EQ(Rendered("{{ m.a }}{{ m['a'] }}{{ m['get']('a') }}", R"({"m": {"a": 1}})"), "111");
}

TEST(Template, WhatIsNotThereIsRefusedWithItsName) {
  EXPECT_THAT(Rendered("x\n{% include 'a' %}"), HasSubstr("line 2, at `{% include 'a' %}`: the statement 'include'"));
  EXPECT_THAT(Rendered("{{ x | nope }}"), HasSubstr("the filter 'nope' is not known here"));
  EXPECT_THAT(Rendered("{{ x is nope }}"), HasSubstr("the test 'nope' is not known here"));
  EXPECT_EQ(Rendered("{% if false %}{{ x | nope }}{% endif %}{{ x | nope if false }}"), "")
      << "a filter that is never reached does no harm";
  EXPECT_THAT(Rendered("{% if true %}{{ x | nope }}{% endif %}"), HasSubstr("the filter 'nope' is not known here"));
  EXPECT_THAT(Rendered("{% for i in x recursive %}{% endfor %}"),
              HasSubstr("at `recursive %}{% endfor %}`: expected %}"));
  EXPECT_THAT(Rendered("{{ f(*x) }}"), HasSubstr("at `*x) }}`: expected an expression"));
  EXPECT_THAT(Rendered("{% for i in [1] %}{% macro f() %}{% endmacro %}{% endfor %}"), HasSubstr("a macro within"));
  EXPECT_THAT(Rendered("{% break %}"), HasSubstr("outside a loop"));
  EXPECT_THAT(Rendered("{% if x %}"), HasSubstr("ends without endif"));
  EXPECT_THAT(Rendered("{{ [].append(1) }}"), HasSubstr("'append' is undefined"));
  EXPECT_THAT(Rendered("{{ '%s' % 1 }}"), HasSubstr("a string % an integer"));
}

TEST(Template, ATemplatesOwnComplaintIsShownWithoutTheCallersText) {
  EXPECT_EQ(Rendered("{{ raise_exception('bad role ' + x + '!') }}", R"({"x": "secret"})"),
            "error: the chat template says: bad role ...!");
}

TEST(Template, TheTimeIsAnArgument) {
  EXPECT_EQ(Rendered("{{ strftime_now('%d %b %Y, %H:%M') }}"), "31 Jul 2025, 12:00");
}

TEST(Template, EveryBeginningOfATemplateIsSurvived) {
  const std::string source =
      "{% macro f(a, b=[1, {'k': 2}]) %}{{ a[1:2] | join(',') }}{% endmacro %}{% for x, y in z if x is not none %}"
      "{{ f(x ~ 'a', b=-1.5) if not y else loop.index }}{% elif %}{% set ns.x %}{% endset %}{% endfor %}";
  for (size_t size = 0; size < source.size(); ++size) Rendered(source.substr(0, size));
}

}  // namespace
}  // namespace runahead::jinja
