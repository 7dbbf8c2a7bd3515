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
        Case{"[1, -2.5 | abs]", "[1, 2.5]"}, Case{"'äPFEL baum' | capitalize", "Äpfel baum"},
        Case{"x | default('d') ~ '' | default('e') ~ ('' | d('f', true))", "df"},
        Case{"m | dictsort", "[('A', [2]), ('b', 1)]"},
        Case{"m | dictsort(true, reverse=true)", "[('b', 1), ('A', [2])]"},
        Case{"{'a': 2, 'b': 1} | dictsort(by='value')", "[('b', 1), ('a', 2)]"},
        Case{"[1, 2] | first ~ 'ab' | last", "1b"}, Case{"e | first is defined", "False"},
        Case{"'1.5' | float + ('x' | float(2))", "3.5"}, Case{"'a\n\nb\n' | indent", "a\n\n    b\n"},
        Case{"'a\n\nb' | indent('> ', true, true)", "> a\n> \n> b"},
        Case{"'12' | int ~ ' ' ~ 3.9 | int ~ ' ' ~ 'x' | int(7) ~ ' ' ~ '-4.2' | int", "12 3 7 -4"},
        Case{"m | items | list", "[('b', 1), ('A', [2])]"}, Case{"[1, none, 'a'] | join('-')", "1-None-a"},
        Case{"l | join('+', attribute='n')", "2+1"}, Case{"'üb' | length + m | length + e | count", "4"},
        Case{"'ab' | list", "['a', 'b']"}, Case{"s | lower | trim ~ s | upper | trim", "abc üüABC ÜÜ"},
        Case{"l | map(attribute='n') | list", "[2, 1]"},
        Case{"l | map(attribute='t', default='?') | list", "['x', '?']"},
        Case{"[' a'] | map('trim') | map('replace', 'a', 'b') | list", "['b']"},
        Case{"[3, 9, 2] | max ~ ['b', 'A'] | min", "9A"}, Case{"l | min(attribute='n')", "{'n': 1}"},
        Case{"[0, 1, ''] | select | list ~ [0, 1] | reject('odd') | list", "[1][0]"},
        Case{"l | selectattr('t') | list | length", "1"}, Case{"l | rejectattr('n', 'eq', 2) | list", "[{'n': 1}]"},
        Case{"none | selectattr('t') | list", "[]"}, Case{"'aXa' | replace('a', 'bb')", "bbXbb"},
        Case{"'aXa' | replace('a', 'b', 1) ~ 'ab' | replace('', '-')", "bXa-a-b-"},
        Case{"'abü' | reverse ~ ([1, 2] | reverse | list)", "üba[2, 1]"}, Case{"'<' | safe", "<"},
        Case{"['b', 'A', 'c'] | sort ~ ['b', 'A'] | sort(case_sensitive=true) ~ [1, 3, 2] | sort(reverse=true)",
             "['A', 'b', 'c']['A', 'b'][3, 2, 1]"},
        Case{"l | sort(attribute='n') | map(attribute='n') | list", "[1, 2]"},
        Case{"1.0 | string ~ none | string", "1.0None"}, Case{"[1, 2.5] | sum ~ l | sum(attribute='n')", "3.53"},
        Case{"'foo bar-baz (qux)' | title", "Foo Bar-Baz (Qux)"}, Case{"'xaxx' | trim('x') ~ s | trim", "aaBc üÜ"},
        Case{"['a', 'A', 1, 1.0] | unique | list", "['a', 1]"}, Case{"'straße' | upper", "STRASSE"}));

INSTANTIATE_TEST_SUITE_P(
    ToJson, Builtins,
    ::testing::Values(Case{"m | tojson", R"({"b": 1, "A": [2]})"},
                      Case{"m | tojson(sort_keys=true)", R"({"A": [2], "b": 1})"},
                      Case{"[1, {'a': [], 'b': {}}, (2,)] | tojson(indent=2)",
                           "[\n  1,\n  {\n    \"a\": [],\n    \"b\": {}\n  },\n  [\n    2\n  ]\n]"},
                      Case{"['ü\"\\\\\\n\\x01\\x7f</', none, true, 1e-7] | tojson",
                           "[\"ü\\\"\\\\\\n\\u0001\x7f</\", null, true, 1e-07]"},
                      Case{"'ü\\U0001F600' | tojson(ensure_ascii=true)", R"("\u00fc\ud83d\ude00")"},
                      Case{"[1, {'a': 2}] | tojson(separators=(',', ':'))", R"([1,{"a":2}])"},
                      Case{"{1: 2, none: 3, true: 4} | tojson", R"({"1": 4, "null": 3})"}));

INSTANTIATE_TEST_SUITE_P(
    Tests, Builtins,
    ::testing::Values(
        Case{"[true is boolean, 1 is boolean, 1 is integer, true is integer, 1.0 is float, true is number]",
             "[True, False, True, False, True, True]"},
        Case{"['' is string, m is mapping, e is mapping, e is iterable, '' is iterable, 1 is iterable, m is sequence]",
             "[True, True, False, True, True, False, True]"},
        Case{"[none is none, x is none, x is undefined, x is defined, e is defined]",
             "[True, False, True, False, True]"},
        Case{"[false is false, 0 is false, true is true, 1 is true]", "[True, False, True, False]"},
        Case{"[3 is odd, 3 is even, 9 is divisibleby 3, 9 is divisibleby(2)]", "[True, False, True, False]"},
        Case{"[1 is eq 1.0, 1 is ne 1, 1 is lt 2, 1 is gt 2, 2 is ge 2, 3 is le 2, 'a' is equalto 'a', 1 is in [1]]",
             "[True, False, True, False, True, False, True, True]"},
        Case{"['a' is lower, 'aB' is upper, 'AB' is upper, '1' is lower, range is callable, 'x' is callable]",
             "[True, False, True, False, True, False]"},
        Case{"['trim' is filter, 'nope' is filter, 'odd' is test]", "[True, False, True]"},
        Case{"[1 is not none, not 1 is none, 1 is sameas 1, 1 is sameas true]", "[True, True, True, False]"}));

INSTANTIATE_TEST_SUITE_P(
    Methods, Builtins,
    ::testing::Values(
        Case{"['abc'.startswith('ab'), 'abc'.startswith(('x', 'a')), 'abc'.endswith('bc'), 'abc'.endswith('abcd')]",
             "[True, True, True, False]"},
        Case{"'a,b,,c'.split(',')", "['a', 'b', '', 'c']"},
        Case{"'a,b,c'.split(',', 1) + 'a,b,c'.rsplit(',', 1)", "['a', 'b,c', 'a,b', 'c']"},
        Case{"s.split() + ' a  b c '.split(none, 1)", "['aBc', 'üÜ', 'a', 'b c ']"},
        Case{"''.split() ~ ''.split(',')", "[]['']"},
        Case{"'xyaxy'.strip('yx') ~ '|' ~ s.lstrip() ~ '|' ~ s.rstrip()", "a|aBc üÜ  |  aBc üÜ"},
        Case{"'a\nb\r\nc\n'.splitlines() ~ 'a\n'.splitlines(true)", "['a', 'b', 'c']['a\\n']"},
        Case{"'-'.join(['a', 'b']) ~ 'aba'.replace('a', 'c') ~ 'aba'.count('a') ~ 'übc'.find('c') ~ 'a'.find('x')",
             "a-bcbc22-1"},
        Case{"'aB'.upper() ~ 'aB'.lower() ~ 'aB'.capitalize() ~ 'a b'.title()", "ABabAbA B"},
        Case{"'abc'.removeprefix('ab') ~ 'abc'.removesuffix('bc') ~ 'abc'.removeprefix('x')", "caabc"},
        Case{"['12'.isdigit(), '1a'.isdigit(), 'ab'.isalpha(), 'a1'.isalnum(), ' '.isspace(), ''.isdigit()]",
             "[True, False, True, True, True, False]"},
        Case{"'{} and {} {{}}'.format(1, 'b') ~ '{1}{0}{n}'.format('a', 'b', n=none)", "1 and b {}baNone"},
        Case{"m.keys() | list ~ m.values() | list ~ m.items() | list", "['b', 'A'][1, [2]][('b', 1), ('A', [2])]"},
        Case{"m.get('b') ~ m.get('x') ~ m.get('x', 'y') ~ m.copy()", "1Noney{'b': 1, 'A': [2]}"},
        Case{"[1, 2, 1].count(1) ~ [1, 2].index(2)", "21"}));

INSTANTIATE_TEST_SUITE_P(Functions, Builtins,
                         ::testing::Values(Case{"range(3) | list ~ range(1, 3) | list ~ range(3, 0, -2) | list",
                                                "[0, 1, 2][1, 2][3, 1]"},
                                           Case{"dict(a=1, b='x')", "{'a': 1, 'b': 'x'}"},
                                           Case{"namespace(a=1).a ~ namespace({'b': 2}).b", "12"}));

TEST(BuiltinErrors, NameWhatIsWrong) {
  EXPECT_THAT(Rendered("{{ 'a' | join(1, 2, 3) }}"), HasSubstr("the filter 'join' takes at most 2 arguments"));
  EXPECT_THAT(Rendered("{{ 'a' | join(x=1) }}"), HasSubstr("the filter 'join' takes no argument 'x'"));
  EXPECT_THAT(Rendered("{{ [1, 'a'] | sort }}"), HasSubstr("cannot be ordered"));
  EXPECT_THAT(Rendered("{{ x | tojson }}"), HasSubstr("'x' is undefined"));
  EXPECT_THAT(Rendered("{{ 'a'.split('') }}"), HasSubstr("the separator is empty"));
  EXPECT_THAT(Rendered("{{ 'a'.startswith(1) }}"), HasSubstr("must be a string"));
  EXPECT_THAT(Rendered("{{ '{}'.format() }}"), HasSubstr("too few arguments"));
  EXPECT_THAT(Rendered("{{ '{0:>5}'.format(1) }}"), HasSubstr("a form of its own"));
  EXPECT_THAT(Rendered("{{ range(100001) }}"), HasSubstr("a range of more than 100000"));
}

TEST(Json, OfCallersIsChecked) {
  EXPECT_FALSE(ParseJson("{").ok());
  EXPECT_FALSE(ParseJson("[1] x").ok());
  EXPECT_FALSE(ParseJson("").ok());
  EXPECT_FALSE(ParseJson("\"\xff\"").ok());
  EXPECT_THAT(std::string(ParseJson("18446744073709551615").status().message()), HasSubstr("beyond 64 bits"));
  EXPECT_THAT(std::string(ParseJson("99999999999999999999999").status().message()), HasSubstr("beyond 64 bits"));
  EXPECT_TRUE(ParseJson(std::string(50, '[') + std::string(50, ']')).ok());
  EXPECT_THAT(std::string(ParseJson(std::string(51, '[') + std::string(51, ']')).status().message()),
              HasSubstr("nested deeper than 50"));
  EXPECT_FALSE(ParseJson(std::string(1 << 20, '[')).ok());
  EXPECT_EQ(Rendered("{{ a }}", R"({"a": {"k": 1, "l": 2, "k": [3]}})"), "{'k': [3], 'l': 2}");
}

}  // namespace
}  // namespace runahead::jinja
