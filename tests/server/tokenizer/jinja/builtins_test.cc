#include "server/tokenizer/jinja/builtins.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/jinja_render.h"

namespace runahead::jinja {
namespace {

using testing::HasSubstr;

// What Python 3.11 with Jinja 3.1.6, set up as transformers does, makes of the same expressions.
struct Case {
  const char* expression;
  const char* expected;
};

class Builtins : public ::testing::TestWithParam<Case> {};

TEST_P(Builtins, DoesAsJinja) {
  EXPECT_EQ(Rendered(std::string("{{ ") + GetParam().expression + " }}",
                     R"({"s": "  aBc üÜ  ", "m": {"b": 1, "A": [2]}, "l": [{"n": 2, "t": "x"}, {"n": 1}], "e": []})"),
            GetParam().expected)
      << GetParam().expression;
}

INSTANTIATE_TEST_SUITE_P(
    Filters, Builtins,
    ::testing::Values(
        Case{"'äPFEL baum' | capitalize", "Äpfel baum"},
        Case{"x | default('d') ~ '' | default('e') ~ ('' | default('f', true))", "df"},
        Case{"m | dictsort", "[('A', [2]), ('b', 1)]"},
        Case{"m | dictsort(true, reverse=true)", "[('b', 1), ('A', [2])]"}, Case{"[1, 2] | first ~ 'ab' | last", "1b"},
        Case{"e | first is defined", "False"}, Case{"'a\n\nb\n' | indent", "a\n\n    b\n"},
        Case{"'a\n\nb' | indent('> ', true, true)", "> a\n> \n> b"},
        Case{R"('a\r\nb\rc\u2028\u0085\u000bd\r' | indent('>'))", "a\n>b\n>c\n\n\n>d"},
        Case{"'12' | int ~ ' ' ~ 3.9 | int ~ ' ' ~ 'x' | int(7) ~ ' ' ~ '-4.2' | int", "12 3 7 -4"},
        Case{"m | items | list", "[('b', 1), ('A', [2])]"}, Case{"[1, none, 'a'] | join('-')", "1-None-a"},
        // What is made a list of for a filter lives as long as the filter looks at it.
        Case{"'ab' | map('upper') | join ~ m | map('lower') | join ~ 'ab' | select | join", "ABbaab"},
        Case{"m | reject('in', ['b']) | list ~ 'ba' | sort | join", "['A']ab"},
        Case{"[1, 'a'] | reverse | list ~ 'ab' | reverse ~ [1] | count ~ x | d(3)", "['a', 1]ba13"},
        Case{"(2 is even) ~ (2 is odd) ~ (-3 is odd) ~ (1 is integer) ~ (1.5 is float)", "TrueFalseTrueTrueTrue"},
        Case{"l | join('+', attribute='n')", "2+1"}, Case{"'üb' | length + m | length + e | length", "4"},
        Case{"'ab' | list", "['a', 'b']"}, Case{"s | lower | trim ~ s | upper | trim", "abc üüABC ÜÜ"},
        Case{"l | map(attribute='n') | list", "[2, 1]"},
        Case{"l | map(attribute='t', default='?') | list", "['x', '?']"},
        Case{"[' a'] | map('trim') | map('replace', 'a', 'b') | list", "['b']"},
        Case{"[3, 9, 2] | max ~ ['b', 'A'] | min", "9A"}, Case{"l | min(attribute='n')", "{'n': 1}"},
        Case{"[0, 1, ''] | select | list ~ [0, 2] | reject('in', [0]) | list", "[1][2]"},
        Case{"l | selectattr('t') | list | length", "1"}, Case{"l | rejectattr('n', 'eq', 2) | list", "[{'n': 1}]"},
        Case{"none | selectattr('t') | list", "[]"}, Case{"'aXa' | replace('a', 'bb')", "bbXbb"},
        Case{"'aXa' | replace('a', 'b', 1) ", "bXa"}, Case{"'<' | safe", "<"},
        Case{"['b', 'A', 'c'] | sort ~ ['b', 'A'] | sort(case_sensitive=true) ~ [1, 3, 2] | sort(reverse=true)",
             "['A', 'b', 'c']['A', 'b'][3, 2, 1]"},
        Case{"l | sort(attribute='n') | map(attribute='n') | list", "[1, 2]"},
        Case{"'foo bar-baz (qux)' | title", "Foo Bar-Baz (Qux)"}, Case{"'xaxx' | trim('x') ~ s | trim", "aaBc üÜ"},
        Case{"'straße' | upper", "STRASSE"}));

INSTANTIATE_TEST_SUITE_P(
    ToJson, Builtins,
    ::testing::Values(Case{"m | tojson", R"({"b": 1, "A": [2]})"},
                      Case{"m | tojson(sort_keys=true)", R"({"A": [2], "b": 1})"},
                      Case{"[1, {'a': [], 'b': {}}, (2,)] | tojson(indent=2)",
                           "[\n  1,\n  {\n    \"a\": [],\n    \"b\": {}\n  },\n  [\n    2\n  ]\n]"},
                      Case{"['ü\"\\\\\\n\\u0001\\u007f</', none, true, 0.0000001] | tojson",
                           "[\"ü\\\"\\\\\\n\\u0001\x7f</\", null, true, 1e-07]"},
                      Case{"'ü\\U0001F600' | tojson(ensure_ascii=true)", R"("\u00fc\ud83d\ude00")"}));

INSTANTIATE_TEST_SUITE_P(
    Tests, Builtins,
    ::testing::Values(
        Case{"[true is boolean, 1 is boolean, 1.0 is number, true is number]", "[True, False, True, True]"},
        Case{"['' is string, m is mapping, e is mapping, e is iterable, '' is iterable, 1 is iterable, m is sequence]",
             "[True, True, False, True, True, False, True]"},
        Case{"[none is none, x is none, x is undefined, x is defined, e is defined]",
             "[True, False, True, False, True]"},
        Case{"[false is false, 0 is false, true is true, 1 is true]", "[True, False, True, False]"},
        Case{"[1 is eq(1.0), 1 is ne(1), 'a' is equalto('a'), 1 is in([1])]", "[True, False, True, True]"},
        Case{"[1 is not none, not 1 is none]", "[True, True]"}));

INSTANTIATE_TEST_SUITE_P(
    Methods, Builtins,
    ::testing::Values(
        Case{"['abc'.startswith('ab'), 'abc'.startswith('b'), 'abc'.endswith('bc'), 'abc'.endswith('abcd')]",
             "[True, False, True, False]"},
        Case{"'a,b,,c'.split(',')", "['a', 'b', '', 'c']"}, Case{"'a,b,c'.split(',', 1)", "['a', 'b,c']"},
        Case{"s.split()", "['aBc', 'üÜ']"}, Case{"''.split() ~ ''.split(',')", "[]['']"},
        Case{"'xyaxy'.strip('yx') ~ '|' ~ s.lstrip() ~ '|' ~ s.rstrip()", "a|aBc üÜ  |  aBc üÜ"},
        Case{"'aba'.replace('a', 'c')", "cbc"}, Case{"'aB'.upper() ~ 'aB'.lower() ~ 'aB'.capitalize()", "ABabAb"},
        Case{"m.keys() | list ~ m.values() | list ~ m.items() | list", "['b', 'A'][1, [2]][('b', 1), ('A', [2])]"},
        Case{"m.get('b') ~ m.get('x') ~ m.get('x', 'y')", "1Noney"}));

INSTANTIATE_TEST_SUITE_P(Functions, Builtins,
                         ::testing::Values(Case{"range(3) | list ~ range(1, 3) | list ~ range(3, 0, -2) | list",
                                                "[0, 1, 2][1, 2][3, 1]"},
                                           Case{"namespace(a=1, b=2).a", "1"}));

TEST(BuiltinErrors, NameWhatIsWrong) {
  EXPECT_THAT(Rendered("{{ 'a' | join(1, 2, 3) }}"), HasSubstr("'join' takes fewer arguments"));
  EXPECT_THAT(Rendered("{{ 'a' | join(x=1) }}"), HasSubstr("'join' takes no argument 'x'"));
  EXPECT_THAT(Rendered("{{ [1, 'a'] | sort }}"), HasSubstr("a string < an integer has no meaning"));
  EXPECT_THAT(Rendered("{{ x | tojson }}"), HasSubstr("'x' is undefined"));
  EXPECT_THAT(Rendered("{{ 'a'.split('') }}"), HasSubstr("the separator is empty"));
  EXPECT_THAT(Rendered("{{ 'a'.startswith(1) }}"), HasSubstr("must be a string"));
  EXPECT_THAT(Rendered("{{ range(100001) }}"), HasSubstr("a range of more than 100000"));
}

}  // namespace
}  // namespace runahead::jinja
