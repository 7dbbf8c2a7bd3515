// Hostile templates and inputs end soon, with an error, in bounded memory and stack.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/jinja_render.h"

namespace runahead::jinja {
namespace {

using testing::HasSubstr;

// With a twentieth of what a rendering may use: what is bounded ends the same way, sooner.
std::string Little(std::string_view source, std::string_view variables = "{}") {
  const Limits limits = {500'000, size_t{1} << 20, int64_t{16} << 20};
  const auto text = RenderText(source, variables, Always, limits);
  return text.ok() ? ToUtf8(*text) : "error: " + std::string(text.status().message());
}

// What a rendering says that does too much; any other refusal is of something else.
auto IsALimit() {
  return testing::AnyOf(HasSubstr("steps"), HasSubstr("longer than"), HasSubstr("values take more than"),
                        HasSubstr("nested deeper than"));
}

std::string Repeated(const std::string& part, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += part;
  return all;
}

constexpr const char* kForever = "{% for a in range(99999) %}{% for b in range(99999) %}";
constexpr const char* kEnds = "{% endfor %}{% endfor %}";

TEST(Limits, Steps) {
  EXPECT_THAT(Rendered(std::string(kForever) + kEnds), HasSubstr("more than 10000000 steps"));
  EXPECT_THAT(Little("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}"),
              HasSubstr("steps"));
  EXPECT_THAT(
      Little(std::string("{% set l = range(99999) | list %}") + kForever + "{% if a in l %}{% endif %}" + kEnds),
      HasSubstr("steps"));
  for (const char* work : {"m.items()", "m | dictsort", "l | select", "s | title", "s.upper()", "s.split('x')"}) {
    const std::string source =
        absl::StrCat("{% set l = range(9999) | list %}", kForever, "{% set x = ", work, " %}", kEnds);
    std::string members = "\"0\": 0";
    for (int i = 1; i < 9999; ++i) absl::StrAppend(&members, ", \"", i, "\": ", i);
    const std::string variables = absl::StrCat("{\"s\": \"", std::string(9999, 'x'), "\", \"m\": {", members, "}}");
    EXPECT_THAT(Little(source, variables), HasSubstr("steps")) << work;
  }
}

TEST(Limits, ValuesThatShareTheirPartsAreNotGoneOverForever) {
  const std::string doubled =
      "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}"
      "{% set ns.b = [ns.b, ns.b] %}{% endfor %}";
  EXPECT_THAT(Little(doubled + "{{ ns.a == ns.b }}"), HasSubstr("steps"));
  EXPECT_THAT(Little(doubled + "{{ ns.a | tojson }}"), IsALimit());
  EXPECT_THAT(Little(doubled + "{{ ns.a }}"), IsALimit());
}

TEST(Limits, Texts) {
  const std::string doubled = "{% set ns = namespace(t='xxxxxxxx') %}{% for i in range(40) %}{% set ns.t = ";
  for (const char* grown : {"ns.t + ns.t", "ns.t ~ ns.t", "ns.t * 2", "[ns.t, ns.t] | join", "ns.t.replace('x', 'xx')",
                            "([ns.t] | tojson) ~ ns.t", "ns.t | indent(9999999, true)"}) {
    EXPECT_THAT(Little(doubled + grown + " %}{% endfor %}"), IsALimit()) << grown;
  }
  EXPECT_THAT(Little("{{ 'x' * 9223372036854775807 }}"), IsALimit());
  EXPECT_THAT(Little("{{ '' * 9223372036854775807 }}"), HasSubstr("steps"));
  EXPECT_THAT(Little("{% set x = 'x' * 1000 * 1000 %}{% for i in range(10) %}{{ x }}{% endfor %}"),
              HasSubstr("longer than"));
}

TEST(Limits, Memory) {
  EXPECT_THAT(
      Little("{% set ns = namespace(l=[]) %}{% for i in range(99) %}{% set ns.l = ns.l + ['x' * 999 * (999 + i)] %}"
             "{% endfor %}"),
      HasSubstr("values take more than"));
  EXPECT_THAT(Little(std::string(kForever) + "{% set x = namespace(a=1, b=2, c=3, d=4, e=5, f=6, g=7, h=8) %}" + kEnds),
              HasSubstr("values take more than"));
  EXPECT_THAT(Little("{% set l = range(99999) | list %}{% set ns = namespace(l=l) %}{% for i in range(9) %}{% set ns.l "
                     "= ns.l + ns.l %}{% endfor %}"),
              IsALimit());
  EXPECT_THAT(Little("{% set l = 'ab' * 90000 %}{{ l | list }}"), IsALimit());
  EXPECT_EQ(Little("{% set x = 'x' * 1000 * 1000 %}{% for i in range(20) %}{% set y = x + 'a' %}{% endfor %}"), "")
      << "what is gone is given back";
}

TEST(Limits, DepthOfValues) {
  EXPECT_THAT(Rendered("{% set ns = namespace(l=[]) %}{% for i in range(200) %}{% set ns.l = [ns.l] %}{% endfor %}"),
              HasSubstr("nested deeper than 100"));
  EXPECT_THAT(
      Rendered("{% set ns = namespace(l={}) %}{% for i in range(200) %}{% set ns.l = {'k': ns.l} %}{% endfor %}"),
      HasSubstr("nested deeper than 100"));
  EXPECT_EQ(Rendered("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me == ns }}"), "True");
}

TEST(Limits, DepthOfTemplates) {
  constexpr int kMany = 20000;
  using Brackets = std::pair<const char*, const char*>;
  for (const auto& [open, close] :
       {Brackets("(", ")"), Brackets("[", "]"), Brackets("{'a':", "}"), Brackets("x[", "]"), Brackets("f(", ")"),
        Brackets("x|d(", ")"), Brackets("1<(", ")"), Brackets("not ", ""), Brackets("-", ""),
        Brackets("1 if 1 else ", ""), Brackets("1+", ""), Brackets("1 ~", ""), Brackets("1 and ", "")}) {
    EXPECT_THAT(Rendered("{{ " + Repeated(open, kMany) + "1" + Repeated(close, kMany) + " }}"),
                HasSubstr("nested deeper than"))
        << open;
  }
  for (const char* part : {"+1", "*1", ".a", "[0]", "|d", "()", " and 1", " ~ 'a'"}) {
    EXPECT_THAT(Rendered("{{ x" + Repeated(part, kMany) + " }}"), HasSubstr("nested deeper than")) << part;
  }
  EXPECT_EQ(Rendered("{{ ''" + Repeated(" ~ 'a'", 3) + " }}"), "aaa");
  EXPECT_THAT(Rendered(Repeated("{% if 1 %}", kMany)), HasSubstr("nested deeper than"));
  EXPECT_THAT(Rendered(Repeated("{% for i in x %}", kMany)), HasSubstr("nested deeper than"));
  EXPECT_EQ(Rendered("{% if 0 %}" + Repeated("{% elif 0 %}", kMany) + "{% else %}a{% endif %}"), "a");
}

TEST(Limits, DepthOfCalls) {
  EXPECT_THAT(Rendered("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("deeper than 1000 levels"));
  EXPECT_THAT(Rendered("{% macro f(x=f()) %}{% endmacro %}{{ f() }}"), HasSubstr("deeper than 1000 levels"));
  EXPECT_THAT(Rendered("{% macro f() %}{% set x %}{{ f() }}{% endset %}{% endmacro %}{{ f() }}"),
              HasSubstr("deeper than"));
}

TEST(Limits, SearchesAreLinear) {
  const std::string text(4 << 20, 'a');
  const std::string needle = std::string(2 << 20, 'a') + "b";
  const std::string variables = absl::StrCat(R"({"t": ")", text, R"(", "n": ")", needle, R"("})");
  EXPECT_EQ(Rendered("{{ n in t }}{{ t.split(n) | length }}{{ t.replace(n, '') == t }}", variables), "False1True");
  EXPECT_THAT(Rendered("{{ t.strip(n) }}", variables), HasSubstr("steps"));
  EXPECT_THAT(Rendered("{{ t | trim(n) }}", variables), HasSubstr("steps"));
}

TEST(Limits, SizeOfTemplates) {
  EXPECT_EQ(Rendered(std::string(512 << 10, 'x')).size(), size_t{512} << 10);
  EXPECT_THAT(Rendered(std::string((512 << 10) + 1, 'x')), HasSubstr("bytes are more than"));
}

TEST(Limits, SomebodyMayEndIt) {
  int asked = 0;
  const auto stop = [&asked] { return ++asked < 3 ? absl::OkStatus() : absl::CancelledError("enough"); };
  EXPECT_EQ(RenderText(std::string(kForever) + kEnds, "{}", stop).status(), absl::CancelledError("enough"));
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace runahead::jinja
